"""The peak is the dearest phase of the run, to the byte; a step's time grows with what it does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_examples import REHEARSAL, STATIC, analysis, plan, problem
from plimsoll.planner.estimate import (
    LOADING_BYTES,
    RESTORE_BYTES,
    RUNNING_BYTES,
    SAVING_BYTES,
    SLICES_BYTES,
    STARTING_BYTES,
    ledger,
)
from plimsoll.planner.speed import sent_bytes, step_seconds
from plimsoll.planner.types import Rates
from plimsoll.units import GIB, MIB

STATE = STATIC.state_bytes
RATES = Rates(
    flops={"float32": 1e11, "bfloat16": 2e11},
    copy_bytes=1e10,
    first_touch_bytes=2e9,
    loop_seconds=1e-3,
    source="made up",
)


def priced(plan, temp, *, extra=0):
    return ledger(plan, problem(GIB), static=STATIC, analysis=analysis(temp, extra=extra), rehearsal=REHEARSAL)


BASE = 100 * MIB + RUNNING_BYTES + STATE


def test_a_large_step_is_the_peak():
    found = priced(plan(), 50 * MIB, extra=MIB)
    assert found.phase == "train"
    assert found.predicted_peak_bytes == BASE + 51 * MIB + 3 * MIB
    assert found.predicted["parameters"] == 10 * MIB
    assert found.predicted["optimizer"] == 20 * MIB


def test_a_carry_is_a_component_of_its_own_and_part_of_what_is_saved():
    carrying = replace(STATIC, carry_bytes=40 * MIB)
    assert carrying.state_bytes == STATE + 40 * MIB
    of = {"analysis": analysis(MIB), "rehearsal": REHEARSAL}
    without, found = (ledger(plan(), problem(GIB), static=static, **of) for static in (STATIC, carrying))
    assert found.predicted["carry"] == 40 * MIB
    for phase in ("start", "train", "evaluate"):
        assert found.phases[phase] == without.phases[phase] + 40 * MIB


def test_a_process_that_needs_most_while_it_starts_has_its_peak_there():
    starting = replace(REHEARSAL, starting_bytes=400 * MIB)
    found = ledger(plan(), problem(GIB), static=STATIC, analysis=analysis(MIB), rehearsal=starting)
    assert found.phase == "load"
    assert found.predicted_peak_bytes == 400 * MIB + LOADING_BYTES


def test_a_small_step_leaves_the_peak_to_saving():
    found = priced(plan(), MIB)
    assert found.phase == "save"
    assert found.predicted_peak_bytes == BASE + SAVING_BYTES + SLICES_BYTES + 3 * MIB


def test_saving_beside_training_costs_the_step_and_a_copy_of_the_state():
    found = priced(plan(async_save=True), 50 * MIB)
    assert found.phase == "save"
    assert found.predicted_peak_bytes == BASE + SAVING_BYTES + SLICES_BYTES + STATE + 50 * MIB + 3 * MIB


def test_phases_start_and_evaluate_have_their_own_temporaries():
    phases = priced(plan(), MIB).phases
    assert phases["start"] == BASE + STARTING_BYTES + 7 * MIB  # no data yet
    assert phases["evaluate"] == BASE + 9 * MIB + 3 * MIB


@given(temp=st.integers(0, 2**40), in_background=st.booleans())
def test_the_components_add_up_to_the_dearest_phase(temp, in_background):
    found = priced(plan(async_save=in_background), temp)
    assert found.predicted_peak_bytes == max(found.phases.values()) == found.phases[found.phase]
    assert min(found.predicted.values()) >= 0


@given(flops=st.floats(1e6, 1e15), more=st.floats(1.001, 100), temp=st.integers(0, 2**36))
def test_more_arithmetic_takes_longer(flops, more, temp):
    one, other = (step_seconds(plan(), analysis(temp, flops=f), STATIC, RATES) for f in (flops, flops * more))
    assert other > one > 0


@given(temp=st.integers(0, 2**36), more=st.integers(2**20, 2**36))
def test_more_temporaries_never_make_it_faster(temp, more):
    one, other = (step_seconds(plan(), analysis(t), STATIC, RATES) for t in (temp, temp + more))
    assert other > one


def test_a_precision_is_priced_at_its_own_rate():
    work = analysis(0, flops=1e12)
    slow = step_seconds(plan(), work, STATIC, RATES)
    fast = step_seconds(plan(precision="bfloat16"), work, STATIC, RATES)
    assert slow - fast == pytest.approx(1e12 / 1e11 - 1e12 / 2e11)


def test_more_micro_batches_of_the_same_size_cost_their_loop():
    few, many = plan(accumulation=4), plan(accumulation=8)
    same = replace(analysis(STATIC.parameter_bytes), flops=0)
    difference = step_seconds(many, same, STATIC, RATES) - step_seconds(few, same, STATIC, RATES)
    assert difference == pytest.approx(4 * (RATES.loop_seconds + 3 * STATIC.parameter_bytes / RATES.copy_bytes))


def test_a_dot_costs_something_to_start():
    few, many = replace(analysis(0), dots=100), replace(analysis(0), dots=300)
    rates = replace(RATES, dot_seconds=1e-5)
    assert step_seconds(plan(), many, STATIC, rates) - step_seconds(plan(), few, STATIC, rates) == pytest.approx(2e-3)


def on_a_pod(plan, temp, *, host_budget=None, peak=0):
    pod = problem(
        GIB, chip="tpu-v4-64", platform="tpu", devices=32, hosts=8, host_budget_bytes=host_budget, effective_batch=64
    )
    shared = replace(STATIC, batch_bytes=MIB, whole_state_bytes=STATE)
    analysed = replace(analysis(temp), peak_bytes=peak)
    return ledger(plan, pod, static=shared, analysis=analysed, rehearsal=REHEARSAL)


def test_an_accelerator_holds_state_batches_and_temporaries_but_no_process():
    found = on_a_pod(plan(), 50 * MIB)
    assert found.phase == "train"
    assert found.predicted_peak_bytes == STATE + 2 * MIB + 50 * MIB
    assert "process" not in found.predicted


def test_the_larger_of_the_compilers_two_figures_counts():
    assert on_a_pod(plan(), 50 * MIB, peak=STATE + 70 * MIB).predicted["step temporaries"] == 70 * MIB
    assert on_a_pod(plan(), 50 * MIB, peak=STATE + 30 * MIB).predicted["step temporaries"] == 50 * MIB


def test_the_host_holds_its_process_its_data_and_at_most_one_copy_of_the_state():
    host = on_a_pod(plan(async_save=True), MIB).host
    assert host is not None
    assert host.phase == "save"
    assert host.predicted["state copy while saving"] == STATE
    assert host.predicted["process"] == 100 * MIB + RUNNING_BYTES
    assert host.predicted["data"] == 3 * MIB
    assert host.fits


def test_a_host_that_is_too_small_does_not_fit_whatever_the_device_has():
    found = on_a_pod(plan(async_save=True), MIB, host_budget=120 * MIB)
    assert found.predicted_peak_bytes < found.budget_bytes
    assert not found.fits


def test_a_cpu_has_one_memory():
    assert priced(plan(), MIB).host is None


@given(fsdp=st.sampled_from([1, 2, 4, 8, 16, 32]), accumulation=st.integers(1, 64))
def test_splitting_the_state_sends_more_and_nothing_is_sent_alone(fsdp, accumulation):
    one = plan(accumulation=accumulation)
    shared = replace(STATIC, parameter_bytes=STATIC.parameter_bytes // fsdp)
    sent = sent_bytes(replace(one, fsdp=fsdp), shared, devices=32)
    assert sent >= sent_bytes(one, STATIC, devices=32) * 0.999
    assert sent_bytes(one, STATIC, devices=1) == 0


def test_restoring_has_the_largest_leaf_twice_as_read_and_on_its_way_to_the_device():
    large = replace(STATIC, largest_leaf_bytes=300 * MIB)
    on_cpu = ledger(plan(), problem(GIB), static=large, analysis=analysis(MIB), rehearsal=REHEARSAL)
    assert on_cpu.phases["restore"] == BASE + RESTORE_BYTES + 2 * 300 * MIB
    pod = problem(GIB, chip="tpu-v4-64", platform="tpu", devices=32, hosts=8, effective_batch=64)
    beside = replace(large, batch_bytes=MIB, whole_state_bytes=STATE)
    host = ledger(plan(), pod, static=beside, analysis=analysis(MIB), rehearsal=REHEARSAL).host
    assert host is not None
    assert host.phase == "restore"
    assert host.predicted["restore buffers"] == RESTORE_BYTES + 2 * 300 * MIB
