"""What is kept of an overrun, and why planning again ends."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.engine.budget_guard import BudgetGuard
from plimsoll.engine.options import Session
from plimsoll.errors import RunError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import RUNNING, Overrun
from plimsoll.training import allocator, checkpoints, distributed, overruns
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.overruns import SPREAD_BYTES
from plimsoll.training.stop import Ended, Reason
from plimsoll.units import MIB
from report_examples import PLANNED

REFUSAL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.")


def overrun(*, measured, predicted=100 * MIB, budget=110 * MIB, what="resident set"):
    return Overrun(step=4, what=what, budget_bytes=budget, predicted_bytes=predicted, measured_bytes=measured)


def test_a_refusal_while_saving_is_not_told_as_a_full_disk(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise REFUSAL

    monkeypatch.setattr(checkpoints, "begin_save", refuse)
    with pytest.raises(type(REFUSAL)):
        Checkpoints(RunFolder(tmp_path), in_background=False).save(1, {"x": jnp.ones(3)}, {})


@given(
    budget=st.integers(100 * MIB, 400 * MIB),
    plans=st.lists(st.integers(50 * MIB, 400 * MIB), min_size=1, max_size=30),
    above=st.lists(st.integers(1, 50 * MIB), min_size=200, max_size=200),
)
def test_planning_again_and_again_ends(budget, plans, above):
    """Whatever is measured, by however little it is over: each answer is a smaller plan, or none."""
    seen, peaks = [], []
    for over in above:
        margin = overruns.margin_bytes(seen)
        fitting = [peak for peak in plans if peak + margin <= budget]
        if not fitting:
            break
        peaks.append(max(fitting))
        seen.append(overrun(predicted=peaks[-1], measured=budget + over, budget=budget))
        assert overruns.margin_bytes(seen) >= margin + SPREAD_BYTES
    assert len(peaks) <= len(set(plans))
    assert peaks == sorted(set(peaks), reverse=True)


def test_an_allocators_refusal_asks_for_a_smaller_plan_though_less_was_in_use():
    refused = overrun(measured=90 * MIB, what="allocator")
    assert refused.excess_bytes == 10 * MIB  # up to the budget, which would have been passed
    assert "with 90.0 MiB in use" in refused.words()


def test_overruns_are_kept_in_order_and_read_back(tmp_path):
    folder = RunFolder(tmp_path)
    assert overruns.read(folder) == []
    assert overruns.margin_bytes([]) == 0
    both = [overrun(measured=120 * MIB), overrun(measured=115 * MIB)]
    for one in both:
        overruns.add(folder, one)
    assert overruns.read(folder) == both
    assert json.loads((tmp_path / "overruns.json").read_text())["overruns"][0]["excess_bytes"] == 20 * MIB
    assert overruns.margin_bytes(both) == (20 + 6) * MIB  # the largest, and what peaks of one plan differ by


@pytest.mark.parametrize(
    "content", ["{", "[]", "null", '{"overrunt": []}', '{"overruns": [{"steq": 3}]}', '{"overruns": ["x"]}']
)
def test_a_damaged_file_is_refused_and_may_be_removed(tmp_path, content):
    (tmp_path / "overruns.json").write_text(content)
    with pytest.raises(RunError, match=r"overruns.json is damaged \(.*\): restore it, or remove it, and .* again"):
        overruns.read(RunFolder(tmp_path))


def of_phases(phases, *, margin=0):
    """A plan by its predicted peaks."""
    return replace(PLANNED, ledger=replace(PLANNED.ledger, phases=phases), margin_bytes=margin)


def test_an_earlier_margin_is_no_part_of_what_the_next_overrun_lacks():
    phases = {"load": 999, "train": 300, "evaluate": 250}  # those of an accelerator, which has no phase of saving
    assert overruns.predicted_running_bytes(of_phases(phases)) == 300
    assert overruns.predicted_running_bytes(of_phases(phases | {"save": 370}, margin=70)) == 300


def line(tmp_path, *, budget, **options):
    planned = of_phases(dict.fromkeys(RUNNING, 100 * MIB))
    run = SimpleNamespace(
        session=Session(budget_bytes=budget, **options),
        folder=RunFolder(tmp_path),
        planned=planned,
        prepared=SimpleNamespace(steps=12),
    )
    return BudgetGuard(run)


def test_what_starting_needs_is_not_answered_by_another_plan(tmp_path):
    assert line(tmp_path, budget=1).is_exceeded()
    begun = line(tmp_path, budget=1)
    begun.peak_before_training = allocator.peak_bytes()
    assert not begun.is_exceeded()


@pytest.mark.parametrize("option", [{"keep_plan": True}, {"profile": 3}, {"profiler_port": 9999}])
def test_what_no_plan_counts_is_not_answered_either(tmp_path, option):
    one = line(tmp_path, budget=1, **option)
    assert not one.is_exceeded()
    with pytest.raises(StoppedError, match=r"the allocator refused .* up to step 0 is whole") as stopped:
        one.refused(REFUSAL)
    assert stopped.value.exit_code == 3
    assert not (tmp_path / "overruns.json").exists()


@pytest.mark.parametrize(("problem", "advice"), [("ECC_UNCORRECTABLE", "dmesg"), ("OUT_OF_MEMORY", "--memory")])
def test_a_lost_card_is_told_with_what_can_be_done(tmp_path, problem, advice):
    lost = line(tmp_path, budget=1).lost(RuntimeError(f"INTERNAL: CUDA_ERROR_{problem}"))
    assert lost.exit_code == 3
    assert problem in str(lost)
    assert advice in str(lost)


def test_of_several_processes_all_keep_the_overrun_of_the_one_that_held_most(tmp_path, monkeypatch):
    own = []
    monkeypatch.setattr(distributed, "of_each", lambda _, value: own.append(value) or [0, 150 * MIB, 130 * MIB])
    watched = line(tmp_path, budget=2**50)
    watched.keep_overrun(Ended(12, Reason.FINISHED))
    assert own == []
    watched.keep_overrun(Ended(7, Reason.OVER_BUDGET))
    assert own == [0]  # it is not over the budget itself
    (kept,) = overruns.read(RunFolder(tmp_path))
    assert (kept.step, kept.measured_bytes) == (7, 150 * MIB)
    assert watched.words(plans_again=False).startswith("step 7: the resident set reached 150.0 MiB;")
