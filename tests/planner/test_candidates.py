"""The words for a plan that was not chosen, and what a process weighs by."""

from dataclasses import replace

import pytest

from planner_examples import analysis, plan
from plimsoll.planned import Ledger
from plimsoll.planner.candidates import Candidate, alternative, kind
from plimsoll.units import GIB, MIB


def candidate(seconds, peak, **changes):
    """Of so many MiB."""
    book = Ledger(budget_bytes=GIB, predicted={"state": peak * MIB}, phase="train")
    return Candidate(plan(**changes), book, seconds, analysis(0))


@pytest.mark.parametrize(
    ("seconds", "peak", "words"),
    [
        (2.5, 150, "25% slower, 50.0 MiB more"),
        (2.0, 100, "0% slower, 0 B more"),
        (1.96, 60, "2% faster, which counts as equal, 40.0 MiB less"),
        (1.0, 160, "50% faster as estimated, 60.0 MiB more"),
    ],
)
def test_what_was_not_chosen_is_slower_or_equal_and_larger_or_smaller(seconds, peak, words):
    other = candidate(seconds, peak)
    found = alternative(other, candidate(2.0, 100))
    assert (found.plan, found.step_seconds, found.predicted_peak_bytes, found.reason) == (
        other.plan,
        seconds,
        peak * MIB,
        words,
    )


def test_a_class_of_numerics_and_the_bytes_must_gain_a_twentieth_each_before_one_is_faster():
    rounded = {"precision": "bfloat16"}
    reasons = [alternative(candidate(1.83, 100, **levers), candidate(2.0, 100)).reason for levers in (rounded, {})]
    assert reasons == ["8% faster, which counts as equal, 0 B more", "8% faster as estimated, 0 B more"]
    assert alternative(replace(candidate(1.5, 100), measured=True), candidate(2.0, 100)).reason.startswith(
        "25% faster, 0"
    )


@pytest.mark.parametrize(
    ("changes", "another"),
    [
        ({"remat": "block"}, True),
        ({"layerwise": 2}, True),
        ({"optimizer_bits": 8}, True),
        ({"weight_bits": 24}, True),
        ({"micro_batch": 2, "accumulation": 8}, False),
        ({"loss_chunk": 256}, False),
        ({"async_save": True}, False),
    ],
    ids=str,
)
def test_a_process_is_of_another_kind_where_its_code_is(changes, another):
    assert (kind(plan(**changes)) != kind(plan())) == another
