"""What another GiB buys, and what one less costs: the plans that nothing beats, in bytes and in time.

Nothing is compiled for it: those that the search did not compile are drawn as it believes them to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from plimsoll.levers.lever import CLASSES
from plimsoll.planned import OtherBudget, Point
from plimsoll.planner.candidates import NEAR, Candidate
from plimsoll.planner.prices import Prices
from plimsoll.planner.space import Combination, same_step
from plimsoll.units import GIB


def frontier(prices: Prices, chosen: Candidate) -> tuple[Point, ...]:
    """Returns the plans than which none is both smaller and faster, the smallest first, the chosen one among them."""
    points = [point for _, point in _points(prices, chosen)]
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.needed_bytes, point.step_seconds)):
        beaten = bool(kept) and point.step_seconds >= min(each.step_seconds for each in kept)
        if not beaten or point.chosen:
            kept.append(point)
    return tuple(kept)


def other_budgets(prices: Prices, chosen: Candidate) -> tuple[OtherBudget, OtherBudget]:
    """Returns the fastest plans for a smaller and for a larger budget: a GiB less, or half, and a GiB more."""
    budget = prices.problem.budget_bytes
    points = list(_points(prices, chosen))
    return (
        _fastest(prices, points, budget - GIB if budget > GIB else budget // 2, chosen),
        _fastest(prices, points, budget + GIB, chosen),
    )


Place = tuple[Combination, int]


def _points(prices: Prices, chosen: Candidate) -> Iterable[tuple[Place, Point]]:
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
            point = Point(
                plan=smallest.plan,
                needed_bytes=smallest.ledger.needed_bytes,
                step_seconds=seconds,
                compiled=micro in known.compiled,
                chosen=is_chosen,
            )
            yield (combination, micro), point


def _fastest(prices: Prices, points: list[tuple[Place, Point]], budget: int, chosen: Candidate) -> OtherBudget:
    fitting = [(place, point) for place, point in points if point.needed_bytes <= budget]
    if not fitting:
        return OtherBudget(budget_bytes=budget, plan=None, predicted_peak_bytes=None, step_ratio=None)
    place, point = min(fitting, key=_cost)
    analysis = prices.candidate(*place).analysis
    best = prices.priced(*place, analysis, replace(prices.problem, budget_bytes=budget))  # as it would be saved there
    ratio = point.step_seconds / chosen.seconds
    return OtherBudget(budget_bytes=budget, plan=best.plan, predicted_peak_bytes=best.peak, step_ratio=ratio)


def _cost(found: tuple[Place, Point]) -> tuple[float, bool, int]:
    """Returns what the search weighs: a class of numerics must gain time; what was chosen is as good as another."""
    _, point = found
    seconds = point.step_seconds * NEAR ** CLASSES.index(point.plan.numerics)
    return seconds, not point.chosen, point.needed_bytes
