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


def test_a_state_that_is_split_among_some_stays_split_among_as_many():
    split = dataclasses.replace(PLAN, fsdp=2)
    half = dataclasses.replace(STATIC, parameter_bytes=STATIC.parameter_bytes // 2)
    found = {one.devices: one.sent_bytes for one in scaling(split, ANALYSIS, half, RATES)}
    gathered = 3 * STATIC.parameter_bytes / 2
    assert found[2] == int(PLAN.effective_batch // 4 * gathered)  # two examples at a time on each
    assert found[32] == int(2 * gathered + 2 * half.parameter_bytes * 15 / 16)


SENT = dataclasses.replace(ANALYSIS, flops=1e15, moved_bytes=0.0, temp_bytes=0)


def test_what_the_compiled_step_sends_and_hides_is_taken_from_it():
    by_formula = 2 * STATIC.parameter_bytes * 31 / 32
    plain = scaling(PLAN, SENT, STATIC, RATES)[-1]
    twice = scaling(PLAN, dataclasses.replace(SENT, sent_bytes=2 * by_formula), STATIC, RATES)[-1]
    assert (plain.sent_bytes, twice.sent_bytes) == (int(by_formula), int(2 * by_formula))
    assert twice.step_seconds == pytest.approx(plain.step_seconds + by_formula / RATES.link_bytes)
    hidden = scaling(PLAN, dataclasses.replace(SENT, hidden_share=0.25), STATIC, RATES)[-1]
    assert hidden.step_seconds == pytest.approx(plain.step_seconds - 0.25 * by_formula / RATES.link_bytes)


def test_the_range_of_an_efficiency_ends_where_the_schedule_lets_nothing_more_be_hidden():
    bounded = scaling(PLAN, dataclasses.replace(SENT, hidden_at_most=0.4), STATIC, RATES)[-1]
    hidden = scaling(PLAN, dataclasses.replace(SENT, hidden_share=0.4), STATIC, RATES)[-1]
    nothing = scaling(PLAN, SENT, STATIC, RATES)[-1]
    assert bounded.efficiency_range == pytest.approx((nothing.efficiency, hidden.efficiency))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_an_efficiency_is_between_that_of_nothing_hidden_and_of_all(share):
    for one in scaling(PLAN, dataclasses.replace(SENT, hidden_share=share), STATIC, RATES):
        least, most = one.efficiency_range
        assert least <= one.efficiency <= most
        if one.devices == 1:
            assert (least, most) == (1.0, 1.0)
    assert one.efficiency == {0.0: least, 1.0: most}.get(share, one.efficiency)


def test_no_more_is_hidden_than_there_is_arithmetic():
    """A thousand times the weights: the step takes as long as sending them."""
    much = dataclasses.replace(SENT, sent_bytes=1000 * STATIC.parameter_bytes, hidden_share=1.0)
    step = scaling(PLAN, much, STATIC, RATES)[-1].step_seconds
    assert step >= 1000 * STATIC.parameter_bytes / RATES.link_bytes


def test_only_numbers_that_divide_the_batch_are_shown():
    odd = dataclasses.replace(PLAN, micro_batch=12, accumulation=1, devices=4)
    assert [one.devices for one in scaling(odd, ANALYSIS, STATIC, RATES)] == [1, 2, 4]


def test_where_no_link_has_a_rate_nothing_is_promised():
    assert scaling(PLAN, ANALYSIS, STATIC, dataclasses.replace(RATES, link_bytes=0.0)) == ()
