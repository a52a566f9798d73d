"""What more devices would do: all of the work is shared, and what is sent is not."""

import dataclasses
import itertools

import pytest

from plimsoll.planned import Plan
from plimsoll.planner.chips import chip, rates
from plimsoll.planner.speed import scaling
from plimsoll.planner.types import Analysis, Static

PLAN = Plan(
    chip="tpu-v4-64", micro_batch=64, accumulation=2, remat="none", loss_chunk=0, precision="bfloat16", prefetch=0,
    async_save=False, devices=32,
)  # fmt: skip
STATIC = Static(
    parameters=100_000_000,
    parameter_bytes=400_000_000,
    optimizer_bytes=800_000_000,
    other_bytes=16,
    largest_leaf_bytes=100_000_000,
)
ANALYSIS = Analysis(
    argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=2**30, flops=2e15, moved_bytes=1e12
)  # fmt: skip
RATES = rates(chip("tpu-v4-64"))


def test_alone_nothing_is_sent_and_with_more_devices_a_smaller_share_of_the_time_is_work():
    found = scaling(PLAN, ANALYSIS, STATIC, RATES)
    assert [one.devices for one in found] == [1, 2, 4, 8, 16, 32]
    assert (found[0].sent_bytes, found[0].efficiency) == (0, 1.0)
    assert all(a.step_seconds > b.step_seconds for a, b in itertools.pairwise(found))
    assert all(a.efficiency > b.efficiency > 0 for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("count", [2, 8, 32])
def test_a_gradient_is_sent_once_a_step_however_many_micro_batches_there_are(count):
    (found,) = (one for one in scaling(PLAN, ANALYSIS, STATIC, RATES) if one.devices == count)
    assert found.sent_bytes == int(2 * STATIC.parameter_bytes * (count - 1) / count)


def test_a_state_that_is_split_is_gathered_for_every_micro_batch():
    split = dataclasses.replace(PLAN, fsdp=32)
    share = dataclasses.replace(STATIC, parameter_bytes=STATIC.parameter_bytes // 32)
    (found,) = (one for one in scaling(split, ANALYSIS, share, RATES) if one.devices == 32)
    assert found.sent_bytes == int(2 * 3 * STATIC.parameter_bytes * 31 / 32)


def test_only_numbers_that_divide_the_batch_are_shown():
    odd = dataclasses.replace(PLAN, micro_batch=12, accumulation=1, devices=4)
    assert [one.devices for one in scaling(odd, ANALYSIS, STATIC, RATES)] == [1, 2, 4]


def test_where_no_link_has_a_rate_nothing_is_promised():
    assert scaling(PLAN, ANALYSIS, STATIC, dataclasses.replace(RATES, link_bytes=0.0)) == ()
