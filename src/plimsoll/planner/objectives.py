"""What a search looks for, as a price of candidates: the fastest plan that fits, or the smallest plan."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.levers.lever import CLASSES
from plimsoll.planner.evidence import Evidence, Range
from plimsoll.planner.space import Candidate

NEAR = 1.05
"""Ratio by which a class of numerics must be faster than the one before it, and all of the budget than none of it."""
SMALL = 0.05
"""Share of a step's time that is not worth a question."""
SMALL_OF_LONG = 0.01
"""The least such share, where a run is so long that an answer repays the time it takes."""
ASKING_SECONDS = 5.0
"""Seconds that a question is taken to need."""
SMALL_BYTES = 0.01
"""Share of the smallest plan's bytes that is not worth a question."""


@dataclass
class Fastest:
    """The fastest plan that fits the budget."""

    goal = "a faster plan"

    evidence: Evidence
    is_late: bool = False
    """Whether the time is over: then nothing is asked but what leads to a first plan, from what is traced."""

    def chance(self, candidate: Candidate) -> float:
        """Returns the chance that the candidate may be chosen."""
        return self.evidence.chance(candidate)

    def cost(self, candidate: Candidate) -> Range:
        """Returns the seconds of a step, weighed by what else a plan is preferred for."""
        seconds = self.evidence.seconds(candidate)
        numerics = CLASSES.index(candidate.plan.numerics)
        weight = NEAR**numerics * self.preference(candidate)
        return seconds.times(Range(weight, weight, weight))

    def preference(self, candidate: Candidate) -> float:
        """Returns the price of the bytes: 1.05 for all of the budget, 1 where they are free.

        They are free on a card whose plans are not timed: what it loses by small kernels is known worst.
        """
        problem = self.evidence.problem
        if problem.platform != "cpu" and not problem.measure:
            return 1.0
        share = self.evidence.needed(candidate).likely / problem.budget_bytes
        return 1 + (NEAR - 1) * min(1.0, share)

    def likely_cost(self, candidate: Candidate) -> float:
        return self.cost(candidate).likely

    def small(self, best: Candidate) -> float:
        """Returns the share of the cost that is not worth a question: in a run, what does not repay it."""
        problem = self.evidence.problem
        if problem.steps is None or not problem.measure:
            return SMALL
        training = problem.steps * self.evidence.seconds(best).likely
        return max(SMALL_OF_LONG, ASKING_SECONDS / training)

    def is_settled(self, candidate: Candidate) -> bool:
        """Returns whether a compiled candidate may be chosen: it fits and, where plans are timed, it was timed."""
        evidence = self.evidence
        is_timed = candidate in evidence.timed or candidate in evidence.untimed
        return self.chance(candidate) == 1 and (is_timed or not evidence.problem.measure)

    def required(self) -> Candidate | None:
        """Returns the candidate that is compiled first, whatever its trace says; None where there is none."""
        return None


@dataclass
class Smallest(Fastest):
    """The plan that needs least, whatever the budget is."""

    goal = "a smaller plan"

    def chance(self, candidate: Candidate) -> float:
        return 1.0

    def cost(self, candidate: Candidate) -> Range:
        """Returns the smallest budget that the candidate fits in."""
        return self.evidence.needed(candidate)

    def small(self, best: Candidate) -> float:
        return SMALL_BYTES

    def is_settled(self, candidate: Candidate) -> bool:
        return True

    def last(self) -> Candidate:
        """Returns the last candidate with the smallest micro-batch: by the order of levers nothing is smaller."""
        space = self.evidence.space
        micro = min(micro for combination in space for micro in combination.plans)
        *_, last = (combination for combination in space if micro in combination.plans)
        return Candidate(last, micro)

    def required(self) -> Candidate | None:
        last = self.last()
        is_known = last in self.evidence.compiled or last in self.evidence.failed
        return None if is_known else last
