"""The peak is the dearest phase of the run, to the byte; temporaries between compiled micro-batches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_examples import REHEARSAL, STATIC, analysis, plan, problem
from plimsoll.planner.estimate import (
    AFTER_OVERRUN,
    interpolated,
    ledger,
    sample,
    spare_bytes,
)
from plimsoll.planner.types import Analysis, Static
from plimsoll.units import GIB, MIB

POD = problem(GIB, chip="tpu-v4-64", platform="tpu", devices=32, hosts=8, effective_batch=64, host_budget_bytes=GIB)


def priced(one, asked=None, *, static=STATIC, step=None, rehearsal=REHEARSAL):
    """Of a step that needs a MiB, on one CPU, where nothing else is said."""
    return ledger(one, asked or problem(GIB), static=static, analysis=step or analysis(MIB), rehearsal=rehearsal)


def test_a_process_that_needs_most_while_it_starts_has_its_peak_there():
    found = priced(plan(), rehearsal=replace(REHEARSAL, starting_bytes=400 * MIB))
    assert found.phase == "load"
    assert found.predicted_peak_bytes == 400 * MIB


@pytest.mark.parametrize(
    ("devices", "fsdp", "hosts", "copies"), [(1, 1, 1, 1), (8, 8, 1, 1), (8, 2, 1, 4), (8, 2, 2, 2), (8, 8, 2, 1)]
)
def test_of_weights_that_are_read_a_process_holds_twice_what_its_copies_of_the_state_do(devices, fsdp, hosts, copies):
    spread, several = plan(devices=devices, fsdp=fsdp), problem(GIB, devices=devices, hosts=hosts, effective_batch=64)
    reading = replace(STATIC, initial_bytes=40 * MIB)
    without, found = (priced(spread, several, static=static).phases for static in (STATIC, reading))
    assert found == without | {"start": without["start"] + copies * 40 * MIB}


@given(temp=st.integers(0, 2**40), in_background=st.booleans())
def test_the_components_add_up_to_the_dearest_phase(temp, in_background):
    found = priced(plan(async_save=in_background), step=analysis(temp))
    assert found.predicted_peak_bytes == max(found.phases.values()) == found.phases[found.phase]
    assert min(found.components.values()) >= 0


def test_kernels_that_a_clock_chooses_are_given_what_a_card_took_for_them():
    """On an H100, 24.8 MiB more than predicted of 2.4 GiB (sudoku-mlp), 33.8 of 5,080.9, with autotuned products."""
    step = analysis(5_000 * MIB)
    exact, chosen = (priced(plan(deterministic=kept), POD, step=step).components for kept in (True, False))
    more = chosen.pop("kernels chosen by the clock")
    assert chosen == exact
    assert 0.0101 * sum(exact.values()) < more < 0.012 * sum(exact.values())


LARGE = Static(
    parameters=1_000, parameter_bytes=10 * MIB, optimizer_bytes=20 * MIB, other_bytes=MIB, ema_bytes=9 * MIB,
    carry_bytes=2 * MIB, largest_leaf_bytes=4 * MIB, batch_bytes=5 * MIB, whole_state_bytes=150 * MIB,
    movable={"optimizer": 18 * MIB, "ema": 8 * MIB, "frozen": 3 * MIB},
)  # fmt: skip
WORK = Analysis(
    argument_bytes=0, output_bytes=3 * MIB, alias_bytes=MIB, temp_bytes=50 * MIB, flops=1.0, host_temp_bytes=6 * MIB
)


def test_what_a_chips_layout_adds_to_the_state_is_in_every_phase():
    exact = replace(WORK, alias_bytes=LARGE.state_bytes, output_bytes=LARGE.state_bytes)
    padded = replace(WORK, alias_bytes=LARGE.state_bytes + 2 * MIB, output_bytes=LARGE.state_bytes + 2 * MIB)
    plain, found = (priced(plan(), POD, static=LARGE, step=step) for step in (exact, padded))
    assert found.phases == {name: size + 2 * MIB for name, size in plain.phases.items()}
    assert found.components["padding of the state"] == 2 * MIB
    assert "padding of the state" not in plain.components


def in_mib(phases):
    assert all(size % MIB == 0 for size in phases.values())
    return {name: size // MIB for name, size in phases.items()}


@pytest.mark.parametrize(("local", "hosts", "fsdp"), [(1, 1, 1), (2, 1, 2), (2, 2, 2), (2, 1, 1), (2, 2, 1)])
def test_every_phase_on_the_cpu_devices_of_each_process_in_mib(local, hosts, fsdp):
    """Of each device a state of 42 and a step of 52; of a process 100 + 14, and data of 3.

    To save takes 6, and beside training a copy. A process writes what its devices hold: nothing is gathered.
    """
    asked = problem(GIB, devices=local * hosts, hosts=hosts)
    static = replace(LARGE, whole_state_bytes=(150 if fsdp > 1 else 42) * MIB)
    base = 114 + local * 42
    for in_background, save in [(False, 0), (True, local * (42 + 52))]:
        how = plan(devices=local * hosts, fsdp=fsdp, async_save=in_background)
        found = priced(how, asked, static=static, step=WORK)
        assert in_mib(found.phases) == {
            "load": 110,
            "start": base + local * 7,
            "restore": base + 16 + 2 * 4,
            "train": base + local * 52 + 3,
            "evaluate": base + local * 9 + 3,
            "save": base + 6 + 3 + save,
        }
        assert found.components["carry"] == local * 2 * MIB
        assert found.needed_bytes - found.predicted_peak_bytes == 64 * MIB


@pytest.mark.parametrize(("predicted", "spare"), [(0, 64), (1216, 64), (1900, 100)])
def test_what_stays_free_grows_with_what_is_predicted(predicted, spare):
    """It is 64 MiB or, if that is more, a twentieth of the budget that is needed."""
    assert spare_bytes(predicted * MIB) == spare * MIB
    large = priced(plan(), static=LARGE, step=replace(WORK, temp_bytes=4 * GIB))
    assert large.needed_bytes == large.predicted_peak_bytes + spare_bytes(large.predicted_peak_bytes)


def test_a_margin_is_added_to_the_phases_that_a_plan_decides_about():
    plain, found = (priced(plan(), problem(GIB, margin_bytes=more)) for more in (0, 30 * MIB))
    more = {name: size - plain.phases[name] for name, size in found.phases.items()}
    assert more == {"load": 0, "start": 0, "restore": 0} | dict.fromkeys(("train", "evaluate", "save"), 30 * MIB)
    assert found.components[AFTER_OVERRUN] == 30 * MIB
    assert AFTER_OVERRUN not in plain.components


@pytest.mark.parametrize(
    ("offload", "device", "host"),
    [("none", 42, 0), ("optimizer", 42 - 26, 26), ("frozen", 42 - 3, 3), ("all", 42 - 29, 29)],
)
def test_every_phase_of_an_accelerator_and_of_its_host_in_mib(offload, device, host):
    """A device holds four batches of 5; its host a process of 114, data of 3, and what four devices left there."""
    found = priced(plan(offload=offload), POD, static=LARGE, step=WORK)
    assert in_mib(found.phases) == {
        "start": device + 7, "train": device + 4 * 5 + 52, "evaluate": device + 4 * 5 + 9
    }  # fmt: skip
    assert found.spare_bytes == 0
    assert found.host is not None
    assert found.host.phase == "save"
    assert found.host.pinned_bytes == 4 * (host + 6) * MIB
    moved = {"offloaded state": 4 * host} if host else {}
    assert in_mib(found.host.components) == {
        "process": 114, **moved, "data": 3, "save buffers": 6, "state copy while saving": 150
    }  # fmt: skip


@pytest.mark.parametrize(("whole", "copied"), [(2, 2), (150, 150), (200, 4 * 42)])
def test_a_host_that_saves_beside_training_holds_temporaries_and_what_its_devices_have_of_the_state(whole, copied):
    """Four devices of 42 MiB each: never more than there is."""
    static = replace(LARGE, whole_state_bytes=whole * MIB)
    saving, waiting = (priced(plan(async_save=beside), POD, static=static, step=WORK).host for beside in (True, False))
    temporaries = {"process": 114, "data": 3, "step temporaries": 4 * 6}
    copy = {"save buffers": 6, "state copy while saving": copied}
    assert (saving.phase, in_mib(saving.components)) == ("save", temporaries | copy)
    if whole == 2:
        assert (waiting.phase, in_mib(waiting.components)) == ("train", temporaries)


@pytest.mark.parametrize(
    ("micros", "compiled"),
    [
        ([3], [3]),
        ([1, 8], [1, 8]),
        ([1, 2, 4, 8, 16], [2, 8]),
        ([1, 3, 5, 11], [3, 11]),
    ],
)
def test_the_second_smallest_and_one_four_times_as_large_are_compiled(micros, compiled):
    assert sample(micros) == compiled


def of(temp, moved=0.0, dots=0.0, hosted=0):
    return replace(analysis(temp), moved_bytes=moved, dots=dots, host_temp_bytes=hosted)


def test_between_and_beyond_two_compiled_micro_batches_by_hand():
    """Temporaries on a line; of the whole step, what is moved and started falls with 1 / micro-batch: 100 + 80 / n
    bytes, 10 + 40 / n dots. A block's inputs are on the host, 30 bytes for each example."""
    known = {2: of(1_000, 140.0, 30.0, 60), 8: of(2_200, 110.0, 15.0, 240)}
    found = {micro: interpolated(micro, known) for micro in (1, 2, 4, 8, 16)}
    assert {micro: one.temp_bytes for micro, one in found.items()} == {1: 800, 2: 1_000, 4: 1_400, 8: 2_200, 16: 3_800}
    for micro, one in found.items():
        assert one.moved_bytes == pytest.approx(100 + 80 / micro)
        assert one.dots == pytest.approx(10 + 40 / micro)
        assert one.host_temp_bytes == 30 * micro


def test_below_the_smaller_compiled_one_there_is_never_less_than_in_proportion():
    """A line through 1,000 at 4 and 5,000 at 8 would be below nothing at 1."""
    steep = {4: of(1_000), 8: of(5_000)}
    assert [interpolated(micro, steep).temp_bytes for micro in (1, 2, 4, 6)] == [250, 500, 1_000, 3_000]
    falling = {4: of(1_000), 8: of(600)}
    assert [interpolated(micro, falling).temp_bytes for micro in (4, 6, 8, 16)] == [1_000, 1_000, 1_000, 1_000]


def test_by_one_compile_alone_what_lies_on_the_host_grows_in_proportion():
    known = {4: of(1_000, hosted=120)}
    assert {micro: interpolated(micro, known).host_temp_bytes for micro in (1, 4, 8)} == {1: 30, 4: 120, 8: 240}
    assert interpolated(8, known).temp_bytes == 2_000


@pytest.mark.parametrize(("peak", "beyond"), [(0, 120), (220, 120), (221, 121)])
def test_beyond_the_state_are_temporaries_and_outputs_of_their_own_or_what_the_peak_says(peak, beyond):
    """100 of temporaries and 20 of outputs that reuse no argument; arguments of 100 are part of the peak."""
    found = Analysis(argument_bytes=100, output_bytes=90, alias_bytes=70, temp_bytes=100, flops=1.0, peak_bytes=peak)
    assert found.beyond_state_bytes == beyond
