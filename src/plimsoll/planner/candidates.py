"""A plan with its price, in bytes and in time, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.levers import registry
from plimsoll.levers.lever import CLASSES
from plimsoll.planned import Alternative, Ledger, Plan
from plimsoll.planner.types import Analysis, Problem
from plimsoll.units import format_bytes

NEAR = 1.05
"""Plans this close in time count as equal: then the one that touches the numbers least wins, then fewer bytes.

On an accelerator where nothing was timed, the largest micro-batch comes before fewer bytes: what a card loses by small
kernels is known worst."""


@dataclass(frozen=True)
class Candidate:
    plan: Plan
    ledger: Ledger
    seconds: float
    analysis: Analysis | None = None
    bound: bool = False
    """True of a micro-batch that was estimated from one compile alone: it may need less."""
    measured: bool = False

    @property
    def peak(self) -> int:
        return self.ledger.predicted_peak_bytes

    @property
    def by_estimate(self) -> bool:
        """True of a plan for an accelerator whose time nobody measured."""
        return self.plan.chip != "cpu" and not self.measured


def preferred(candidates: Sequence[Candidate]) -> Candidate:
    """Returns, of those that count as fastest, the one that touches the numbers least, then as NEAR says."""
    fastest = min(candidate.seconds for candidate in candidates)
    near = (candidate for candidate in candidates if candidate.seconds <= NEAR * fastest)

    def rank(candidate: Candidate) -> tuple[int, int, int]:
        larger_first = -candidate.plan.micro_batch if candidate.by_estimate else 0
        return CLASSES.index(candidate.plan.numerics), larger_first, candidate.peak

    return min(near, key=rank)


def smaller(plan: Plan, problem: Problem) -> Iterator[Plan]:
    """Yields the plan with fewer and fewer bytes, by levers that change no compiled function.

    First with synchronous saves unless saving is pinned, then with fewer batches made ready, too.
    """
    if plan.async_save and "async_save" not in plan.pinned:
        plan = replace(plan, async_save=False)
        yield plan
    for depth in sorted(problem.host_bytes, reverse=True):
        if depth < plan.prefetch:
            yield replace(plan, prefetch=depth)


def same_step(plan: Plan) -> Plan:
    """Returns the plan as the compiler sees it: levers that change no compiled function at their plain value."""
    unseen = {name: lever.plain for name, lever in registry.LEVERS.items() if not lever.compiled}
    return plan.with_levers(**unseen)


def kind(plan: Plan) -> tuple[Any, ...]:
    """Returns what a process weighs by: whether layers are unrolled, and how much code the update is."""
    return plan.remat, plan.storage, plan.layerwise


def combination(plan: Plan) -> tuple[Any, ...]:
    """Returns the values of the levers that the search combines: all but those it chooses by themselves."""
    return tuple(getattr(plan, name) for name, lever in registry.LEVERS.items() if not lever.by_itself)


def alternative(candidate: Candidate, chosen: Candidate) -> Alternative:
    """Returns the candidate with the reason why it was not chosen: by how much it is slower, and larger."""
    slower = candidate.seconds / chosen.seconds - 1
    more = candidate.peak - chosen.peak
    reason = f"{abs(slower):.0%} {'slower' if slower >= 0 else 'faster, which counts as equal'}"
    reason += f", {format_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    return Alternative(plan=candidate.plan, peak_bytes=candidate.peak, step_seconds=candidate.seconds, reason=reason)
