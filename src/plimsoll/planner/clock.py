"""Plans that fit, timed on the chip at hand.

Rates rank combinations of levers well, and the micro-batches of one combination badly: no rate tells what a loop costs
on this machine, nor what stays in its cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from plimsoll.levers.registry import in_words
from plimsoll.planned import Plan
from plimsoll.planner.candidates import Candidate, combination, same_step
from plimsoll.planner.types import Compiler, DoesNotCompile

TIMED = 3
"""Plans of each combination of levers that are timed, where there are at most FEW combinations."""
FEW = 2


@dataclass(frozen=True)
class Clock:
    """A ranking of plans by measured time."""

    compiler: Compiler
    say: Callable[[str], None]
    failures: list[str]
    """Reasons why plans could not be timed; more are added."""
    must_run: bool = False
    """True on a card: training has the same limit, so a plan that cannot run here is not chosen."""
    broken: set[Plan] = field(default_factory=set)
    """Plans that could not run, each by itself, where they must."""

    def ranked(self, fitting: list[Candidate]) -> list[Candidate]:
        """Times the most promising plans, and then the neighbours of the fastest, while they are faster still.

        Returns all as they were where they cannot be timed; without those that must run and cannot.
        """
        first = _shortlist(fitting)
        while first:
            if known := self.timed(first):
                return self._climbed(known, fitting)
            if self.must_run:
                fitting = [candidate for candidate in fitting if self.may_run(candidate)]
                first = _shortlist(fitting)
            else:
                first.remove(max(first, key=lambda candidate: candidate.peak))  # the machine is smaller than the budget
        return fitting

    def may_run(self, candidate: Candidate) -> bool:
        return same_step(candidate.plan) not in self.broken

    def _climbed(self, known: list[Candidate], fitting: list[Candidate]) -> list[Candidate]:
        """Returns `known` with the next larger and smaller micro-batch of the fastest, until both are known."""
        while True:
            best = min(known, key=lambda candidate: candidate.seconds)
            alike = [candidate for candidate in fitting if combination(candidate.plan) == combination(best.plan)]
            alike.sort(key=lambda candidate: candidate.plan.micro_batch)
            at = [candidate.plan.micro_batch for candidate in alike].index(best.plan.micro_batch)
            timed = {candidate.plan for candidate in known}
            beside = alike[max(0, at - 1) : at + 2]
            neighbours = [near for near in beside if near.plan not in timed and self.may_run(near)]
            again = self.timed([best, *neighbours]) if neighbours else []
            if not again:
                return known
            known = [*(candidate for candidate in known if candidate.plan != best.plan), *again]

    def timed(self, candidates: list[Candidate]) -> list[Candidate]:
        """Times all of them in turn, or none; where plans must run, those that can, each by itself if one cannot."""
        self.say(f"timing {len(candidates)} plans in turn")
        try:
            seconds = self.compiler.measure([replace(candidate.plan, async_save=True) for candidate in candidates])
        except DoesNotCompile as problem:
            if self.must_run and len(candidates) > 1:
                return [timed for candidate in candidates for timed in self.timed([candidate])]
            failure = str(problem)
            if self.must_run:
                plan = candidates[0].plan
                self.broken.add(same_step(plan))
                failure = f"cannot run: micro-batch {plan.micro_batch}, {in_words(plan.levers)}: {failure}"
                self.say(failure)
            self.failures.append(failure)
            return []
        return [
            replace(candidate, seconds=took, measured=True) for candidate, took in zip(candidates, seconds, strict=True)
        ]


def _shortlist(fitting: list[Candidate]) -> list[Candidate]:
    """Returns the plans worth timing.

    They are the first few of one or two combinations of levers; of more, the fastest and the largest of each.
    """
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in fitting:
        groups.setdefault(combination(candidate.plan), []).append(candidate)
    if len(groups) <= FEW:
        chosen = [candidate for group in groups.values() for candidate in group[:TIMED]]
    else:
        largest = [max(group, key=lambda candidate: candidate.plan.micro_batch) for group in groups.values()]
        chosen = [*(group[0] for group in groups.values()), *largest]
    return [candidate for candidate in fitting if candidate in chosen]
