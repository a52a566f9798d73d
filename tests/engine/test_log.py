"""What a session says at the end of an epoch: the validation loss of that epoch, where it has one."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plimsoll.engine import log as engine_log
from plimsoll.engine.log import SessionLog
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registry import preset
from plimsoll.report.metrics import read_rows
from plimsoll.training.loop import Ended
from plimsoll.training.schedule import Best, Schedule, epochs_over, times
from plimsoll.units import MIB
from report_examples import PLANNED

STRICT = True


def made(tmp_path, *, per_epoch, evaluate_every, steps=10, of_recipe=None, **planned):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    session = SimpleNamespace(tracker="none", profile=0, quiet=True, log_every=100)
    prepared = Prepared(steps=steps, steps_per_epoch=per_epoch, evaluate_every=of_recipe)
    source = SimpleNamespace(waited_seconds=0.0, state=dict)
    schedule = Schedule(steps=steps, stop_at=steps, evaluate_every=evaluate_every)
    return SessionLog(
        session, preset("control"), replace(PLANNED, **planned), prepared, folder, schedule, source, resumed=None
    )


def said(tmp_path, *, per_epoch, evaluate_every, steps=10, of_recipe=None):
    """The (epoch, validation loss) of every summary; the loss of the evaluation at step n is n."""
    log = made(tmp_path, per_epoch=per_epoch, evaluate_every=evaluate_every, steps=steps, of_recipe=of_recipe)
    for step in range(1, steps + 1):
        log.step(step, {"loss": 1.0})
        if evaluate_every and log.schedule.due(evaluate_every, step):
            log.evaluation(step, {"validation_loss": float(step)})
    log.close(None, None, Best())
    text = (tmp_path / "run/log.txt").read_text()
    found = re.findall(r"Epoch (\d+)/[\d.]+ summary.*?Val Loss: +(\S+)", text, re.DOTALL)
    return [(int(epoch), loss if loss == "no" else float(loss)) for epoch, loss in found]


@pytest.mark.parametrize("per_epoch", [2.0, 2.5, 3.4, 1.0])
def test_the_summary_has_the_validation_loss_of_its_own_epoch(tmp_path, per_epoch):
    """An epoch need not be a whole number of steps: it is over with the first step that completes it."""
    ends = [step for step in range(1, 11) if int(step / per_epoch + 1e-9) > int((step - 1) / per_epoch + 1e-9)]
    expected = [(int(end / per_epoch + 1e-9), float(end)) for end in ends]
    if per_epoch == 3.4:  # three epochs are 10.2 steps, and a run of them 10
        expected.append((3, 10.0))
    assert said(tmp_path, per_epoch=per_epoch, evaluate_every=per_epoch) == expected


@given(per_epoch=st.floats(1, 1000), epochs=st.integers(1, 100))
@example(per_epoch=194.75, epochs=2)
@example(per_epoch=65_104.17 / 50_000, epochs=50_000)
def test_a_run_of_so_many_epochs_has_them_all_at_its_end_and_none_before_it_is_over(per_epoch, epochs):
    steps = int(epochs * per_epoch)
    assert epochs_over(steps, per_epoch, steps) == epochs
    assert all(
        epochs_over(done, per_epoch, steps) == times(done, per_epoch) for done in range(max(0, steps - 50), steps)
    )


def test_where_a_step_reads_the_data_more_than_once_its_epochs_are_counted_too():
    assert [epochs_over(done, 0.95, 57) for done in (1, 19, 56, 57)] == [1, 20, 58, 60]


@pytest.mark.parametrize(
    ("per_epoch", "steps", "taken", "epochs"),
    [
        (194.75, 389, 389, 2),
        (194.75, 389, 388, 1),
        (0.95, 57, 57, 60),
        (2.0, 10, 10, 5),
        (None, 10, 10, 0),
        (20.0, 10, 10, 0),
    ],
)
def test_the_whole_run_has_as_many_epochs_as_its_steps_are(tmp_path, monkeypatch, per_epoch, steps, taken, epochs):
    """However many of them this session took: its summary tells of the steps and the time of the whole run, too."""
    outcomes = []
    monkeypatch.setattr(engine_log, "final_summary", lambda outcome: outcomes.append(outcome) or "")
    log = made(tmp_path, per_epoch=per_epoch, evaluate_every=0, steps=steps)
    log.close(Ended(step=taken, signal=None, over=False), None, Best())
    (outcome,) = outcomes
    assert outcome.epochs == epochs
    assert outcome.epochs_begun == pytest.approx(taken / per_epoch if per_epoch else 0)


@pytest.mark.parametrize(
    ("about", "summaries"),
    [
        ({"per_epoch": 2.0, "evaluate_every": 3}, [(1, "no"), (2, 3.0), (3, 6.0), (4, 6.0), (5, 10.0)]),
        ({"per_epoch": 5.0, "evaluate_every": 0}, [(1, "no"), (2, "no")]),
        (
            {"per_epoch": 2.0, "evaluate_every": 6.0, "steps": 21, "of_recipe": 6.0},  # every few epochs
            [(3, 6.0), (6, 12.0), (9, 18.0), (10, 21.0)],
        ),
    ],
)
def test_without_an_evaluation_at_its_end_an_epoch_has_the_one_before(tmp_path, about, summaries):
    assert said(tmp_path, **about) == summaries


def test_shares_of_many_systems_are_one_column_of_the_logged_row(tmp_path):
    log = made(tmp_path, per_epoch=None, evaluate_every=1)
    found = {"validation_unexplained_0": 0.25, "validation_unexplained_12": float("nan")}
    log.evaluation(1, {"validation_loss": 1.0, **found})
    (row,) = read_rows(tmp_path / "run/metrics.jsonl")
    assert row["validation_unexplained"] == {"0": 0.25, "12": None}
    assert not found.keys() & row.keys()
    log.close(None, None, Best())


@pytest.mark.parametrize(("step_flops", "has"), [(1e-12, True), (1e30, False)])
def test_a_share_of_more_than_the_machine_was_measured_to_do_is_no_share(tmp_path, step_flops, has):
    log = made(tmp_path, per_epoch=None, evaluate_every=0, steps=1, step_flops=step_flops, chip_flops=1.0)
    log.step(1, {"loss": 1.0})
    (row,) = read_rows(tmp_path / "run/metrics.jsonl")
    assert ("mfu" in row) == has
    log.close(None, None, Best())


@pytest.mark.parametrize("every", [1, 3, 2.5, 0.4])
def test_what_is_due_every_so_many_steps_is_due_when_they_are_over(every):
    schedule = Schedule(steps=100, stop_at=100)
    due = [step for step in range(1, 100) if schedule.due(every, step)]
    assert due == sorted({-int(-n * every // 1) for n in range(1, 1000)} & set(range(1, 100)))


@pytest.mark.parametrize(
    ("trained", "later", "phases"),
    [
        (200.0, 0.6, {"train": 200.6}),
        (200.0, 1.5, {"train": 200.0, "evaluate": 201.5}),
        (100.6, 0.3, {}),  # loading had the peak
        (100.6, 50.0, {"evaluate": 150.6}),
    ],
)
def test_a_peak_that_is_only_read_later_is_of_no_other_phase(tmp_path, monkeypatch, trained, later, phases):
    """It was taken for what an evaluation needs, and later plans were 27 MiB too high."""
    peaks = [100.0]
    monkeypatch.setattr("plimsoll.training.memory.peak_resident_bytes", lambda: round(peaks[-1] * MIB))
    log = made(tmp_path, per_epoch=None, evaluate_every=1)
    peaks.append(trained)
    log.step(1, {"loss": 1.0})
    peaks.append(trained + later)
    log.evaluation(1, {"validation_loss": 1.0})
    assert log.phase_peaks == {name: round(size * MIB) for name, size in phases.items()}
    assert log.seen == {"train", "evaluate"}
    log.close(None, None, Best())
