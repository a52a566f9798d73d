"""What another GiB buys, and what one less costs: the plans that nothing beats, in bytes and in time.

Nothing is compiled for it: those that the search did not compile are drawn as it believes them to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from plimsoll.planned import Point
from plimsoll.planner.candidates import Candidate
from plimsoll.planner.prices import Prices
from plimsoll.planner.space import same_step


def frontier(prices: Prices, chosen: Candidate) -> tuple[Point, ...]:
    """Returns the plans than which none is both smaller and faster, the smallest first, the chosen one among them."""
    unbeaten: list[Point] = []
    least = math.inf
    for point in sorted(_points(prices, chosen), key=lambda point: (point.needed_bytes, point.step_seconds)):
        if point.step_seconds < least or point.chosen:
            unbeaten.append(point)
            least = min(least, point.step_seconds)
    return tuple(unbeaten)


def _points(prices: Prices, chosen: Candidate) -> Iterator[Point]:
    """Yields every traced candidate as small as it can be saved and read.

    One that fits the budget and is believed to be faster than the chosen one is not: the search would have taken it.
    """
    anything = replace(prices.problem, budget_bytes=0)
    for combination, known in prices.beliefs.known.items():
        for micro in combination.plans if known.traced else ():
            if prices.beliefs.temporaries(combination, micro).low == math.inf:
                continue

            candidate = prices.candidate(combination, micro)
            smallest = prices.priced(combination, micro, candidate.analysis, anything)
            is_chosen = combination.steps[micro] == same_step(chosen.plan)
            seconds = candidate.seconds
            if not is_chosen and smallest.ledger.needed_bytes <= prices.problem.budget_bytes:
                seconds = max(seconds, chosen.seconds)
            yield Point(
                plan=smallest.plan,
                needed_bytes=smallest.ledger.needed_bytes,
                step_seconds=seconds,
                compiled=micro in known.compiled,
                chosen=is_chosen,
            )
