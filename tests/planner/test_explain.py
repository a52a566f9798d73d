"""The words for a plan that was not chosen."""

from dataclasses import replace

import pytest

from planner_examples import plan
from plimsoll.planned import Ledger
from plimsoll.planner.explain import Priced, alternative
from plimsoll.units import GIB, MIB


def candidate(seconds, peak, **changes):
    """Of so many MiB."""
    book = Ledger(budget_bytes=GIB, components={"state": peak * MIB}, phase="train")
    return Priced(plan(**changes), book, seconds)


@pytest.mark.parametrize(
    ("seconds", "peak", "changes", "words"),
    [
        (2.5, 150, {}, "25% slower, 50.0 MiB more"),
        (1.96, 60, {}, "2% faster, which counts as equal, 40.0 MiB less"),
        (1.83, 100, {}, "8% faster as estimated, 0 B more"),
        (1.83, 100, {"precision": "bfloat16"}, "8% faster, which counts as equal, 0 B more"),
    ],
)
def test_what_was_not_chosen_is_slower_or_equal_and_larger_or_smaller(seconds, peak, changes, words):
    """A class of numerics and the bytes must gain a twentieth each before a plan counts as faster."""
    other = candidate(seconds, peak, **changes)
    found = alternative(other, candidate(2.0, 100))
    assert (found.plan, found.step_seconds, found.predicted_peak_bytes) == (other.plan, seconds, peak * MIB)
    assert found.reason == words
    measured = alternative(replace(other, is_timed=True), candidate(2.0, 100))
    assert measured.reason == words.replace(" as estimated", "")
