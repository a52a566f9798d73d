"""Which of several plans is preferred, which smaller ones there are, and the words for one that was not chosen."""

import dataclasses

import pytest

from planner_examples import plan, problem
from plimsoll.planned import Ledger
from plimsoll.planner.candidates import Candidate, alternative, preferred, smaller
from plimsoll.units import GIB, MIB


def candidate(seconds, peak, **changes):
    """Of so many MiB."""
    book = Ledger(budget_bytes=GIB, predicted={"state": peak * MIB}, phase="train")
    return Candidate(plan(**changes), book, seconds)


def test_of_plans_within_a_twentieth_of_the_fastest_the_smallest_is_preferred():
    fastest, small, slow = candidate(100.0, 90), candidate(105.0, 80), candidate(105.1, 10)
    assert preferred([fastest, small, slow]) == small
    assert preferred([slow, fastest]) == fastest


def test_on_a_card_that_is_not_timed_the_largest_micro_batch_is_preferred():
    """Of those within a twentieth; what was timed, and a CPU's, goes by bytes."""
    small, large, slow = (
        candidate(seconds, peak, chip="h100", micro_batch=micro)
        for seconds, peak, micro in [(100.0, 10, 2), (105.0, 90, 8), (105.1, 90, 16)]
    )
    assert preferred([small, large, slow]) == large
    timed = [dataclasses.replace(each, measured=True) for each in (small, large)]
    assert preferred(timed) == timed[0]


def test_exact_numbers_are_preferred_to_fewer_bytes():
    exact, rounded = candidate(105.0, 90), candidate(100.0, 10, precision="bfloat16")
    assert preferred([rounded, exact]) == exact
    assert preferred([rounded, dataclasses.replace(exact, seconds=105.1)]) == rounded


def variants(of, **changes):
    depths = {depth: {"data": depth * MIB} for depth in (1, 2, 4)}
    return [(one.async_save, one.prefetch) for one in smaller(of, problem(GIB, host_bytes=depths, **changes))]


def test_first_a_save_waits_and_then_fewer_and_fewer_batches_are_made_ready():
    assert variants(plan(async_save=True, prefetch=4)) == [(False, 4), (False, 2), (False, 1)]
    assert variants(plan(async_save=True, prefetch=2)) == [(False, 2), (False, 1)]


def test_what_is_pinned_or_waits_already_stays():
    assert variants(plan(async_save=True, prefetch=2, pinned=("async_save",))) == [(True, 1)]
    assert variants(plan(async_save=True, prefetch=2, pinned=("remat",))) == [(False, 2), (False, 1)]
    assert variants(plan(async_save=False, prefetch=2)) == [(False, 1)]
    assert variants(plan(async_save=False, prefetch=1)) == []


@pytest.mark.parametrize(
    ("seconds", "peak", "words"),
    [
        (2.5, 150, "25% slower, 50.0 MiB more"),
        (2.0, 100, "0% slower, 0 B more"),
        (1.96, 60, "2% faster, which counts as equal, 40.0 MiB less"),
    ],
)
def test_what_was_not_chosen_is_slower_or_equal_and_larger_or_smaller(seconds, peak, words):
    other = candidate(seconds, peak)
    found = alternative(other, candidate(2.0, 100))
    assert (found.plan, found.step_seconds, found.peak_bytes, found.reason) == (other.plan, seconds, peak * MIB, words)
