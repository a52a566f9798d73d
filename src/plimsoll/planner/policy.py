"""Choice of the plan to trace, compile or time next: a pure function of the results so far and of the objective."""

from __future__ import annotations

from collections import Counter

from plimsoll.planner.evidence import OUT_OF_MEMORY, Evidence, Inquiry
from plimsoll.planner.objectives import NEAR, Fastest
from plimsoll.planner.space import Candidate, Combination

LEAST_CHANCE = 0.1
"""Lowest probability of fitting the budget at which a traced candidate is worth a question, once a plan is known."""
EXPECTED = 0.5
"""Lowest probability of fitting the budget at which a traced candidate counts as expected to fit."""
GIVEN_UP = 12
"""Number of failures for other reasons than memory, without a success, after which the search gives up."""


def best(evidence: Evidence, objective: Fastest) -> Candidate | None:
    """Returns the compiled candidate with the lowest cost that may be chosen; None if there is none."""
    settled = [
        candidate
        for candidate in evidence.compiled
        if candidate not in evidence.failed and objective.is_settled(candidate)
    ]
    return min(settled, key=objective.likely_cost, default=None)


def inquiries(evidence: Evidence, objective: Fastest) -> list[Inquiry]:
    """Returns the questions that may change the choice of a plan, the most promising first; none to end the search."""
    if nothing_will_work(evidence):
        return []
    required = objective.required()
    if required is not None:
        return [next_inquiry(evidence, required)]
    known = best(evidence, objective)
    if known is None:
        return first_inquiries(evidence, objective)
    worthwhile = worthwhile_inquiries(evidence, objective, known)
    if objective.is_late:
        worthwhile = [inquiry for inquiry in worthwhile if inquiry.verb == "time" and objective.may_time]
    return worthwhile or confirmation(evidence, known)


def first_inquiries(evidence: Evidence, objective: Fastest) -> list[Inquiry]:
    """Returns the question that leads to a first plan."""
    possible = [candidate for candidate in evidence.candidates() if objective.chance(candidate) > 0]
    if not possible:
        return []

    # Trace the fastest combination first.
    first = evidence.space[0]
    last = evidence.space[-1]
    if not evidence.traced:
        return [trace_of(first)]

    # An untraced candidate counts as expected to fit while there is time to trace it. Its cost is multiplied by NEAR.
    def is_expected(candidate: Candidate) -> bool:
        if evidence.is_traced(candidate):
            return objective.chance(candidate) >= EXPECTED
        return not objective.is_late

    def cost(candidate: Candidate) -> float:
        return objective.likely_cost(candidate) * (1.0 if evidence.is_traced(candidate) else NEAR)

    # Take the cheapest candidate that is expected to fit, or else the likeliest to fit.
    expected = [candidate for candidate in possible if is_expected(candidate)]
    target = min(expected, key=cost, default=max(possible, key=objective.chance))
    inquiry = next_inquiry(evidence, target)

    # Trace the smallest combination second: its bytes are a lower bound for the others.
    if inquiry.verb == "trace" and last.family not in evidence.traced:
        return [trace_of(last)]
    return [inquiry]


def worthwhile_inquiries(evidence: Evidence, objective: Fastest, known: Candidate) -> list[Inquiry]:
    """Returns the questions with an expected gain above `objective.small`, the largest gain first."""
    most = objective.likely_cost(known)
    gains: dict[Inquiry, float] = {}
    for candidate in evidence.candidates():
        least_chance = LEAST_CHANCE if evidence.is_traced(candidate) else 0.0
        is_known = candidate in evidence.compiled and objective.is_settled(candidate)
        if not is_known and objective.chance(candidate) > least_chance:
            inquiry = next_inquiry(evidence, candidate)
            gain = objective.cost(candidate).gain_below(most) / most
            gains[inquiry] = max(gain, gains.get(inquiry, 0.0))

    small = objective.small(known)
    worthwhile = [inquiry for inquiry, gain in gains.items() if gain > small]
    return sorted(worthwhile, key=lambda inquiry: -gains[inquiry])


def confirmation(evidence: Evidence, known: Candidate) -> list[Inquiry]:
    """Returns the question about the bytes of initialisation, evaluation and process; none if it was answered."""
    return [] if known in evidence.prepared else [Inquiry("prepare", known)]


def next_inquiry(evidence: Evidence, candidate: Candidate) -> Inquiry:
    """Returns the next question about a candidate: its trace, then its compile, then its timing."""
    if not evidence.is_traced(candidate):
        return trace_of(candidate.combination)
    verb = "time" if candidate in evidence.compiled else "compile"
    return Inquiry(verb, candidate)


def trace_of(combination: Combination) -> Inquiry:
    return Inquiry("trace", Candidate(combination, max(combination.plans)))


def nothing_will_work(evidence: Evidence) -> bool:
    """Returns True once so many candidates failed, without a success, that the cause is unlikely to be the plan."""
    failures = Counter(failure.verb for failure in evidence.failed.values() if OUT_OF_MEMORY not in failure.why)
    compiling_fails = failures["compile"] >= GIVEN_UP and not evidence.compiled
    timing_fails = failures["time"] >= GIVEN_UP and not evidence.timed
    return compiling_fails or timing_fails
