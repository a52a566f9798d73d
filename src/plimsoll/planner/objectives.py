"""Objectives of a search, each with a cost of candidates: the fastest plan that fits, or the smallest plan."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.levers.lever import CLASSES
from plimsoll.planner.evidence import Evidence, Range
from plimsoll.planner.space import Candidate

NEAR = 1.05
"""Largest ratio of two step times that count as equal.

A plan with looser numerics (exact, mixed, compressed) must be faster by this ratio. So must a plan that takes the whole
budget, compared with one that takes nearly none."""
SMALL = 0.05
"""Share of a step's time below which an expected gain is not worth a question to the compiler."""
SMALL_OF_LONG = 0.01
"""Lower bound on the share that replaces SMALL in a long run, where small gains repay a question (`Fastest.small`)."""
ASKING_SECONDS = 5.0
"""Assumed seconds of one question to the compiler."""
SMALL_BYTES = 0.01
"""Share of the smallest plan's bytes below which an expected gain is not worth a question to the compiler."""


@dataclass
class Fastest:
    """Objective of a search for the fastest plan that fits the budget."""

    goal = "a faster plan"

    evidence: Evidence
    is_late: bool = False
    """Whether no time for a compile is left. Then only timings remain, and questions about traced candidates that
    lead to a first plan."""
    may_time: bool = True
    """Whether time for a timing is left."""

    def chance(self, candidate: Candidate) -> float:
        """Returns the probability that the candidate may be chosen."""
        return self.evidence.chance(candidate)

    def cost(self, candidate: Candidate) -> Range:
        """Returns the seconds of a step, multiplied by penalties for looser numerics and for more memory."""
        seconds = self.evidence.seconds(candidate)
        numerics = CLASSES.index(candidate.plan.numerics)
        weight = NEAR**numerics * self.preference(candidate)
        return seconds.times(Range(weight, weight, weight))

    def preference(self, candidate: Candidate) -> float:
        """Returns the penalty for memory: from 1 for none of the budget to 1.05 for all of it.

        On an accelerator whose plans are not timed it is 1, because the cost of small kernels there is least certain.
        """
        problem = self.evidence.problem
        if problem.platform != "cpu" and not problem.measure:
            return 1.0
        share = self.evidence.needed(candidate).likely / problem.budget_bytes
        return 1 + (NEAR - 1) * min(1.0, share)

    def likely_cost(self, candidate: Candidate) -> float:
        return self.cost(candidate).likely

    def small(self, best: Candidate) -> float:
        """Returns the share of the cost below which an expected gain is not worth a question to the compiler.

        If plans are timed for a run, it is the share of training that a question takes, but at least SMALL_OF_LONG.
        """
        problem = self.evidence.problem
        if problem.steps is None or not problem.measure:
            return SMALL
        training = problem.steps * self.evidence.seconds(best).likely
        return max(SMALL_OF_LONG, ASKING_SECONDS / training)

    def is_settled(self, candidate: Candidate) -> bool:
        """Returns True if a compiled candidate may be chosen: it fits and, where plans are timed, was timed."""
        evidence = self.evidence
        is_timed = candidate in evidence.timed or candidate in evidence.untimed
        return self.chance(candidate) == 1 and (is_timed or not evidence.problem.measure)

    def required(self) -> Candidate | None:
        """Returns a candidate that must be compiled first, whatever its trace says; None for no such candidate."""
        return None


@dataclass
class Smallest(Fastest):
    """Objective of a search for the plan that needs the fewest bytes, with any budget."""

    goal = "a smaller plan"

    def chance(self, candidate: Candidate) -> float:
        return 1.0

    def cost(self, candidate: Candidate) -> Range:
        """Returns the range of the smallest budget that the candidate fits, in bytes."""
        return self.evidence.needed(candidate)

    def small(self, best: Candidate) -> float:
        return SMALL_BYTES

    def is_settled(self, candidate: Candidate) -> bool:
        return True

    def last(self) -> Candidate:
        """Returns the candidate with the smallest micro-batch and the settings that should need least memory."""
        space = self.evidence.space
        micro = min(micro for combination in space for micro in combination.plans)
        *_, last = (combination for combination in space if micro in combination.plans)
        return Candidate(last, micro)

    def required(self) -> Candidate | None:
        last = self.last()
        is_known = last in self.evidence.compiled or last in self.evidence.failed
        return None if is_known else last
