"""Frontier of bytes against step time: plans that no other plan beats in both.

Nothing is compiled for the frontier. Plans that the search did not compile appear with their likely bytes and seconds.
"""

from __future__ import annotations

import math

from plimsoll.planned import Point
from plimsoll.planner.evidence import Evidence
from plimsoll.planner.space import Candidate, smaller


def frontier(evidence: Evidence, chosen: Candidate) -> tuple[Point, ...]:
    """Returns the frontier, from the smallest to the fastest plan. The chosen plan is always on it."""
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
    """Returns the point of a traced candidate, with its likely bytes and seconds.

    The plan is the variant that needs the least memory: synchronous saves and the fewest prefetched batches. A
    candidate that fits the budget gets at least the seconds of the chosen one: the search found no faster plan that
    fits.
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
