"""The ledger of a run of several sessions: its components add up to its peak, and no phase is forgotten."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.engine import ledger
from plimsoll.engine.ledger import Measurements, held_by
from plimsoll.files.provenance import note_session
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import OTHER, Ledger, RunLedger, SessionBytes
from plimsoll.report.tables import ledger_table
from plimsoll.training.phases import Phases
from report_examples import PLANNED

MIB = 2**20
COMPONENTS = {"process": 150 * MIB, "parameters": 10 * MIB, "optimizer": 20 * MIB, "step temporaries": 90 * MIB}
PHASES = {"load": 100 * MIB, "start": 120 * MIB, "train": 270 * MIB, "evaluate": 200 * MIB, "save": 200 * MIB}
BOOK = Ledger(budget_bytes=400 * MIB, components=COMPONENTS, phase="train", phases=PHASES)


class Session:
    """Memory of one session in MiB: what it held between steps, and the highest peak after each phase, in order."""

    def __init__(self, folder, *, between, loaded=100, started=120, resumed=None, **phases):
        run = SimpleNamespace(
            session=SimpleNamespace(budget_bytes=400 * MIB, patience=None),
            folder=folder,
            planned=replace(PLANNED, ledger=BOOK),
            plan=SimpleNamespace(devices=1),
            notes=[],
        )
        reached = {"load": loaded, "start" if resumed is None else "restore": started, **phases}
        self.phases = Phases()
        self.phases.between_steps = between * MIB
        for phase, size in reached.items():
            if size * MIB > self.phases.peak:
                self.phases.peak = self.phases.peaks[phase] = size * MIB
        self.measured = Measurements(
            run=run,
            guard=SimpleNamespace(overrun=None),
            phases=self.phases,
            source=SimpleNamespace(held_bytes=5 * MIB),
            shapes={},
            held={"optimizer": 20 * MIB, "parameters": 10 * MIB},
            fullest_bytes=30 * MIB,
            resumed=resumed,
        )

    def write(self, monkeypatch):
        monkeypatch.setattr(ledger.allocator, "peak_bytes", lambda: self.phases.peak)
        monkeypatch.setattr(ledger.allocator, "device_bytes", lambda: None)
        monkeypatch.setattr(self.phases, "look", lambda: None)
        written = self.measured.write(None)
        assert self.measured.run.folder.ledger() == written
        return written


def total(ledger):
    return sum(component.measured or 0 for component in ledger.components.values())


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.create()
    return made


def test_after_a_resume_the_components_are_those_of_the_session_with_the_peak(folder, monkeypatch):
    first = Session(folder, between=190, train=290, save=300).write(monkeypatch)
    second = Session(folder, between=180, resumed=40, train=260, evaluate=250).write(monkeypatch)
    assert first.components == second.components
    assert second.measured_bytes == total(second) == 300 * MIB
    assert second.session.peak_bytes == 260 * MIB
    assert second.session.components["step temporaries"] == 80 * MIB


def test_phases_of_all_sessions_have_their_figure_where_they_raised_the_peak(folder, monkeypatch):
    Session(folder, between=180, train=260, save=290).write(monkeypatch)
    found = Session(folder, between=180, resumed=40, train=280, evaluate=270).write(monkeypatch)
    assert found.measured.phases == {
        "load": 100 * MIB, "start": 120 * MIB, "train": 280 * MIB, "save": 290 * MIB, "restore": 120 * MIB,
    }  # fmt: skip
    table = " ".join(ledger_table(found).split())
    assert "phase evaluate 200.0 MiB - - -" in table
    assert "phase save 200.0 MiB 290.0 MiB" in table


def test_a_session_that_takes_no_step_adds_its_phases_and_no_part(folder, monkeypatch):
    first = Session(folder, between=180, train=260).write(monkeypatch)
    again = Session(folder, between=150, loaded=150, started=150, resumed=60, evaluate=170).write(monkeypatch)
    assert again.components == first.components
    assert again.measured_bytes == first.measured_bytes == 260 * MIB
    assert (again.measured.phases["load"], again.measured.phases["train"]) == (150 * MIB, 260 * MIB)


def test_notes_of_a_session_that_was_killed_are_in_the_ledger_of_the_next_once(folder, monkeypatch):
    note_session(folder, ["planned again after step 8: micro batch 2 instead of 4"])  # and killed
    note_session(folder)
    for _ in range(2):
        found = Session(folder, between=180, train=260).write(monkeypatch)
        assert found.notes == ("planned again after step 8: micro batch 2 instead of 4",)


def test_a_ledger_that_is_damaged_costs_what_it_said_and_nothing_else(folder, monkeypatch):
    Session(folder, between=190, train=290, save=300).write(monkeypatch)
    (folder.path / "ledger.json").write_text("{")
    found = Session(folder, between=180, resumed=40, train=260).write(monkeypatch)
    assert "what earlier sessions measured is lost" in found.notes[0]
    assert found.measured_bytes == 260 * MIB


SESSIONS = st.lists(
    st.fixed_dictionaries(
        {
            "between": st.integers(170, 250),
            "loaded": st.integers(90, 300),
            "train": st.integers(170, 390),
            "evaluate": st.integers(100, 390),
            "save": st.integers(100, 390),
        }
    ),
    min_size=1,
    max_size=4,
)


@given(sessions=SESSIONS)
def test_measured_components_add_up_to_the_peak_of_all_sessions(sessions, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("ledger") / "run")
    folder.create()
    with pytest.MonkeyPatch.context() as patch:
        for number, sizes in enumerate(sessions):
            sizes = sizes | {"train": max(sizes["train"], sizes["between"])}
            session = Session(folder, resumed=number * 10 or None, **sizes)
            found = session.write(patch)
    assert total(found) == found.measured_bytes
    assert max(found.measured.phases.values()) == found.measured_bytes


def test_what_no_component_accounts_for_has_a_name():
    session = SessionBytes(peak_bytes=9, phases={"train": 9}, components={"process": 5, "data": None})
    ledger = RunLedger.of_plan(PLANNED).merged(session, None)
    measured = {name: component.measured for name, component in ledger.components.items()}
    assert (measured["process"], measured["data"], measured[OTHER]) == (5, None, 4)
    again = ledger.merged(session, ledger)
    assert again.components == ledger.components


def test_a_state_is_held_by_its_components():
    ones = jnp.ones(256)  # 1 KiB
    state = {
        "params": {"trainable": ones, "frozen": ones},
        "optimizer": [ones] * 3,
        "step": jnp.int32(0),
        "carry": None,
    }
    assert held_by(state) == {"optimizer": 3 * 1024 + 4, "parameters": 2 * 1024}
    assert held_by(state | {"ema": ones}) == {"optimizer": 3 * 1024 + 4, "parameters": 2 * 1024, "ema": 1024}
