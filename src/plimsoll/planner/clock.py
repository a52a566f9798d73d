"""Plans that fit, timed on the chip at hand.

Rates rank combinations of levers well, and the micro-batches of one combination badly: what a loop costs on this
machine, and what stays in its cache, no rate says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.planner.candidates import Candidate, combination
from plimsoll.planner.types import Compiler, DoesNotCompile

TIMED = 3
"""Plans of a combination of the other levers that are timed on the chip at hand, where few were enough."""
FEW = 2


@dataclass(frozen=True)
class Clock:
    compiler: Compiler
    say: Callable[[str], None]
    failures: list[str]
    """Why plans could not be timed is added to it."""

    def ranked(self, fitting: list[Candidate]) -> list[Candidate]:
        """The most promising, by the clock, and then what lies beside the fastest of them, while that is faster still.

        Where they cannot be timed, all as they were.
        """
        first = _shortlist(fitting)
        while first:
            if known := self.timed(first):
                return self._climbed(known, fitting)
            first.remove(max(first, key=lambda candidate: candidate.peak))  # the machine is smaller than the budget
        return fitting

    def _climbed(self, known: list[Candidate], fitting: list[Candidate]) -> list[Candidate]:
        """`known`, and the next larger and smaller micro-batch of the fastest, until both are known."""
        best = min(known, key=lambda candidate: candidate.seconds)
        beside = [one for one in _beside(best, fitting) if one.plan not in {other.plan for other in known}]
        if not beside:
            return known
        again = self.timed([best, *beside])
        others = [candidate for candidate in known if candidate.plan != best.plan]
        return self._climbed([*others, *again], fitting) if again else known

    def timed(self, candidates: list[Candidate]) -> list[Candidate]:
        """All of them timed in turn, or none."""
        self.say(f"timing {len(candidates)} plans in turn")
        try:
            seconds = self.compiler.measure([replace(candidate.plan, async_save=True) for candidate in candidates])
        except DoesNotCompile as problem:
            self.failures.append(str(problem))
            return []
        return [
            replace(candidate, seconds=took, measured=True) for candidate, took in zip(candidates, seconds, strict=True)
        ]


def _shortlist(fitting: list[Candidate]) -> list[Candidate]:
    """Worth timing: of one or two combinations of levers the first few, of more the fastest and the largest of each."""
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in fitting:
        groups.setdefault(combination(candidate.plan), []).append(candidate)
    if len(groups) <= FEW:
        chosen = [candidate for group in groups.values() for candidate in group[:TIMED]]
    else:
        largest = [max(group, key=lambda candidate: candidate.plan.micro_batch) for group in groups.values()]
        chosen = [*(group[0] for group in groups.values()), *largest]
    return [candidate for candidate in fitting if candidate in chosen]


def _beside(best: Candidate, fitting: list[Candidate]) -> list[Candidate]:
    """Of the same levers, with the next smaller and the next larger micro-batch."""
    alike = [one for one in fitting if combination(one.plan) == combination(best.plan)]
    alike.sort(key=lambda candidate: candidate.plan.micro_batch)
    sizes = [one.plan.micro_batch for one in alike]
    at = sizes.index(best.plan.micro_batch)
    return alike[max(0, at - 1) : at] + alike[at + 1 : at + 2]
