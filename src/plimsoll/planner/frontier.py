"""What another GiB buys, and what one less costs: the plans that nothing beats, in bytes and in time.

Nothing is compiled for it: those that the search did not compile are drawn as they are likely to be.
"""

from __future__ import annotations

import math

from plimsoll.planned import Point
from plimsoll.planner.evidence import Evidence
from plimsoll.planner.space import Candidate, smaller


def frontier(evidence: Evidence, chosen: Candidate) -> tuple[Point, ...]:
    """Returns the plans than which none is both smaller and faster, the smallest first, the chosen one among them."""
    traced = [candidate for candidate in evidence.candidates() if evidence.is_traced(candidate)]
    points = [point_of(evidence, candidate, chosen) for candidate in traced]
    points.sort(key=lambda point: (point.needed_bytes, point.step_seconds))

    unbeaten: list[Point] = []
    least = math.inf
    for point in points:
        if point.step_seconds < least or point.chosen:
            unbeaten.append(point)
            least = min(least, point.step_seconds)
    return tuple(unbeaten)


def point_of(evidence: Evidence, candidate: Candidate, chosen: Candidate) -> Point:
    """Returns a traced candidate, as small as it can be saved and read.

    One that fits the budget and is likely to be faster than the chosen one is not: the search would have taken it.
    """
    *_, least = smaller(candidate.plan, evidence.problem)
    needed = round(evidence.needed(candidate).likely)
    seconds = evidence.seconds(candidate).likely
    if needed <= evidence.problem.budget_bytes:
        seconds = max(seconds, evidence.seconds(chosen).likely)
    return Point(
        plan=least,
        needed_bytes=needed,
        step_seconds=seconds,
        compiled=candidate in evidence.compiled,
        chosen=candidate == chosen,
    )
