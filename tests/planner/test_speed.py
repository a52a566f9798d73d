"""Seconds of a step, worked by hand: every term of the roofline, with rates that are round numbers."""

import dataclasses

import pytest

from plimsoll.planned import Plan
from plimsoll.planner.chips import chip, rates
from plimsoll.planner.speed import KERNELS_OF_A_MICRO_BATCH, host_bytes, range_of, sent_bytes, step_seconds
from plimsoll.planner.types import Analysis, Rates, Static
from plimsoll.types import Levers

RATES = Rates(
    flops={"float32": 1e9, "bfloat16": 4e9}, copy_bytes=1e6, first_touch_bytes=5e5, loop_seconds=0.5, source="",
    dot_seconds=0.25, link_bytes=1e5, host_link_bytes=2e4,
)  # fmt: skip
STATIC = Static(
    parameters=1_000, parameter_bytes=4_000, optimizer_bytes=8_000, other_bytes=100, ema_bytes=4_000, carry_bytes=900,
    largest_leaf_bytes=1_000, movable={"optimizer": 7_000, "ema": 3_000, "frozen": 2_000},
)  # fmt: skip
STATE_BYTES = 4_000 + 8_000 + 4_000 + 900 + 100
WORK = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=104_000, flops=8e9, dots=12)


def plan(**changes):
    plain = Plan(
        chip="cpu",
        accumulation=1,
        levers=Levers(micro_batch=2, remat="none", loss_chunk=0, precision="float32", prefetch=0, async_save=False),
    )
    return Plan.from_dict(plain.to_dict() | changes)


def test_one_micro_batch_on_a_cpu():
    arithmetic, dots, loop = 8.0, 12 * 0.25, 0.5
    temporaries = 3 * 104_000 / 1e6  # written, read, and the gradient written
    state = 3 * STATE_BYTES / 1e6
    first_touch = 104_000 / 5e5
    assert step_seconds(plan(), WORK, STATIC, RATES) == pytest.approx(
        arithmetic + temporaries + state + first_touch + dots + loop, rel=1e-12
    )


def test_accumulating_keeps_a_gradient_and_moves_it_with_every_micro_batch():
    activations = 3 * 3 * (104_000 - 4_000) / 1e6
    gradient = 3 * 3 * 4_000 / 1e6
    rest = 8.0 + 3 * STATE_BYTES / 1e6 + 104_000 / 5e5 + 12 * 0.25 + 3 * 0.5
    assert step_seconds(plan(accumulation=3), WORK, STATIC, RATES) == pytest.approx(activations + gradient + rest)


def test_on_an_accelerator_the_operands_of_dots_are_moved_and_not_the_temporaries():
    work = dataclasses.replace(WORK, moved_bytes=2e6, dots=0)
    moved = 1.5 * 2e6 / 4 / 1e6 + 3 * STATE_BYTES / 1e6
    sent = 2 * 4_000 * 3 / 4 / 1e5
    seconds = step_seconds(plan(micro_batch=8, devices=4, precision="bfloat16"), work, STATIC, RATES, devices=4)
    assert seconds == pytest.approx(8e9 / (4 * 4e9) + moved + 104_000 / 5e5 + sent + 0.5)


def test_devices_of_one_cpu_share_its_rates():
    alone = step_seconds(plan(), WORK, STATIC, RATES, devices=2)
    shared = step_seconds(plan(), WORK, STATIC, RATES, devices=2, sharing=2)
    started = 12 * 0.25 + 0.5
    assert shared - started == pytest.approx(2 * (alone - started))


@pytest.mark.parametrize(("offload", "moved"), [
    ("none", 0), ("optimizer", 2 * (7_000 + 3_000)), ("frozen", 2 * 3 * 2_000),
    ("all", 2 * (7_000 + 3_000 + 3 * 2_000)),
])  # fmt: skip
def test_frozen_weights_come_with_every_micro_batch_and_the_rest_comes_and_goes_once(offload, moved):
    there = plan(offload=offload, accumulation=3)
    work = dataclasses.replace(WORK, host_temp_bytes=500 if moved else 0)
    assert host_bytes(there, STATIC) == moved
    added = (moved + 2 * 3 * work.host_temp_bytes) / 2e4
    seconds = [step_seconds(each, work, STATIC, RATES) for each in (there, plan(accumulation=3))]
    without = 2 * 3 * work.host_temp_bytes / 2e4
    assert seconds[0] - seconds[1] == pytest.approx(added - without)


def test_what_is_sent_by_hand():
    """Four devices, two copies of a state that two share: 3 halves of the whole weights for each micro-batch, twice a
    half of one device's gradient once."""
    assert sent_bytes(plan(fsdp=2, accumulation=5), STATIC, devices=4) == 5 * 3 * 8_000 / 2 + 2 * 4_000 / 2
    assert sent_bytes(plan(fsdp=4, accumulation=5), STATIC, devices=4) == 5 * 3 * 16_000 * 3 / 4


def test_a_step_with_every_term_is_their_sum():
    """Two devices of one CPU, in three micro-batches, with a moved state and temporaries on the host."""
    work = dataclasses.replace(WORK, host_temp_bytes=500)
    arithmetic = 8e9 * 2 / (2 * 1e9)
    moved = 2 * (3 * 3 * (104_000 - 4_000) + 3 * 3 * 4_000 + 3 * STATE_BYTES) / 1e6
    first_touch = 2 * 104_000 / 5e5
    sent = 2 * (2 * 4_000 / 2) / 1e5
    fetched = (2 * 7_000 + 2 * 3_000 + 2 * 3 * 500) / 2e4
    there = plan(accumulation=3, devices=2, offload="optimizer")
    assert step_seconds(there, work, STATIC, RATES, devices=2, sharing=2) == pytest.approx(
        arithmetic + moved + first_touch + sent + fetched + 12 * 0.25 + 3 * 0.5, rel=1e-12
    )


def test_temporaries_smaller_than_a_gradient_hold_no_activations():
    """The gradient is moved and nothing besides it: there is no less than nothing."""
    few = dataclasses.replace(WORK, temp_bytes=1_000)
    seconds = 8.0 + (3 * 3 * 4_000 + 3 * STATE_BYTES) / 1e6 + 1_000 / 5e5 + 12 * 0.25 + 3 * 0.5
    assert step_seconds(plan(accumulation=3), few, STATIC, RATES) == pytest.approx(seconds, rel=1e-12)


ON_A_GPU = dataclasses.replace(RATES, launch_seconds=0.01, call_seconds=0.125)
KERNELS = dataclasses.replace(WORK, moved_bytes=2e6, dots=0, kernels=40, kernel_seconds=9.0)


def test_kernels_that_a_compiler_showed_take_the_place_of_dots_and_moves():
    assert step_seconds(plan(accumulation=3), KERNELS, STATIC, ON_A_GPU) == pytest.approx(9 + 40 * 0.01 + 0.125 + 1.5)


def test_what_lies_beyond_the_compiled_ones_is_not_faster_than_its_arithmetic():
    beyond = dataclasses.replace(KERNELS, kernel_seconds=1.0)
    assert step_seconds(plan(), beyond, STATIC, ON_A_GPU) == pytest.approx(8 + 40 * 0.01 + 0.125 + 0.5)


def test_a_gpu_without_its_compiler_starts_kernels_too():
    """And a step is called, as one on a CPU is."""
    traced = dataclasses.replace(KERNELS, kernel_seconds=0.0)
    without = step_seconds(plan(), traced, STATIC, RATES)
    assert step_seconds(plan(), traced, STATIC, ON_A_GPU) - without == pytest.approx(40 * 0.01 + 0.125)


@pytest.mark.parametrize(("accumulation", "flops", "moved_bytes", "parameters", "measured"), [
    (1, 67_645_734_912, 0.753e9, 1_279_104, 0.00492),
    (2, 42_984_032_698_368, 79.41e9, 97_536_768, 0.1363),
])  # fmt: skip
def test_the_steps_of_an_h200_are_in_the_range_of_its_rates_alone(
    accumulation, flops, moved_bytes, parameters, measured
):
    """As traced at the commit that was timed (docs/results/device.json): 9.6 and 82 ms by the rates."""
    traced = dataclasses.replace(
        WORK, temp_bytes=0, flops=flops, moved_bytes=moved_bytes, dots=0,
        kernels=KERNELS_OF_A_MICRO_BATCH * accumulation,
    )  # fmt: skip
    state = dataclasses.replace(
        STATIC, parameters=parameters, parameter_bytes=4 * parameters, optimizer_bytes=8 * parameters
    )
    of_step = plan(precision="bfloat16", accumulation=accumulation)
    seconds = step_seconds(of_step, traced, state, rates(chip("h200")))
    least, most = range_of(seconds, "roofline", platform="cuda", loss_chunk=0)
    assert least <= measured <= most


def test_without_links_one_device_sends_and_fetches_nothing():
    alone = dataclasses.replace(RATES, link_bytes=0.0, host_link_bytes=0.0)
    assert step_seconds(plan(), WORK, STATIC, alone) == step_seconds(plan(), WORK, STATIC, RATES)
