"""A plan with its price, in bytes and in time, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plimsoll.levers.lever import CLASSES
from plimsoll.planned import Alternative, Ledger, Plan
from plimsoll.planner.types import Analysis
from plimsoll.units import format_bytes

NEAR = 1.05
"""Plans this close in time count as equal: a class of numerics must gain as much, and so must all of the budget."""


@dataclass(frozen=True)
class Candidate:
    plan: Plan
    ledger: Ledger
    seconds: float
    analysis: Analysis
    measured: bool = False
    """True where the clock said its seconds."""

    @property
    def peak(self) -> int:
        return self.ledger.predicted_peak_bytes


def kind(plan: Plan) -> tuple[Any, ...]:
    """Returns what a process weighs by: whether layers are unrolled, and how much code the update is."""
    return plan.remat, plan.storage, plan.layerwise


def alternative(candidate: Candidate, chosen: Candidate) -> Alternative:
    """Returns the candidate with by how much it is slower, and larger: why it was not chosen.

    A faster one that does not count as equal was not confirmed in the time, or the smallest was asked for.
    """
    slower = candidate.seconds / chosen.seconds - 1
    more = candidate.peak - chosen.peak
    classes = CLASSES.index(candidate.plan.numerics) - CLASSES.index(chosen.plan.numerics)
    equal = chosen.seconds <= candidate.seconds * NEAR ** (1 + max(0, classes))
    faster = "faster, which counts as equal" if equal else "faster" if candidate.measured else "faster as estimated"
    reason = f"{abs(slower):.0%} {'slower' if slower >= 0 else faster}"
    reason += f", {format_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    return Alternative(
        plan=candidate.plan, predicted_peak_bytes=candidate.peak, step_seconds=candidate.seconds, reason=reason
    )
