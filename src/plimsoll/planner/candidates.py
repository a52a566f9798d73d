"""A plan with its price, in bytes and in time, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.planner.types import Analysis
from plimsoll.types import OFFLOAD_WORDS, STORED, Alternative, Ledger, Plan, Storage
from plimsoll.units import format_bytes

NEAR = 1.05
"""Plans this close in time count as equal: then the one that touches the numbers least wins, then fewer bytes."""


@dataclass(frozen=True)
class Candidate:
    plan: Plan
    ledger: Ledger
    seconds: float
    confirmed: bool
    """Compiled, not interpolated."""
    analysis: Analysis | None = None
    bound: bool = False
    """Of one compile alone, for a larger micro-batch: it may need less."""
    measured: bool = False

    @property
    def peak(self) -> int:
        return self.ledger.predicted_peak_bytes

    @property
    def needed(self) -> int:
        return self.ledger.needed_bytes

    @property
    def fits(self) -> bool:
        return self.ledger.fits

    def preference(self) -> tuple[int, int]:
        return ("exact", "mixed", "compressed").index(self.plan.numerics), self.peak


def same_step(plan: Plan) -> Plan:
    """What the compiler sees of it."""
    return replace(plan, async_save=True, prefetch=0)


def kind(plan: Plan) -> tuple[Any, ...]:
    """What a process weighs depends on this: whether layers are unrolled, and how much code the update is."""
    return plan.remat, plan.storage, plan.layerwise


def levers(plan: Plan) -> tuple[Any, ...]:
    """Of a step, but for the micro-batch."""
    return (
        plan.remat,
        plan.loss_chunk,
        plan.attention_chunk,
        plan.precision,
        plan.fsdp,
        plan.storage,
        plan.layerwise,
        plan.offload,
    )


def alternative(candidate: Candidate, chosen: Candidate) -> Alternative:
    slower = candidate.seconds / chosen.seconds - 1
    more = candidate.peak - chosen.peak
    reason = f"{abs(slower):.0%} {'slower' if slower >= 0 else 'faster, which counts as equal'}"
    reason += f", {format_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    return Alternative(plan=candidate.plan, peak_bytes=candidate.peak, step_seconds=candidate.seconds, reason=reason)


def words(levers: Mapping[str, Any]) -> str:
    chunk = f"loss chunk {levers['loss_chunk']}" if levers["loss_chunk"] else "loss whole"
    split = f", state over {levers['fsdp']}" if levers["fsdp"] > 1 else ""
    storage = levers.get("storage") or Storage(**{name: levers[name] for name in STORED})
    blocks = f", attention in blocks of {levers['attention_chunk']}" if levers["attention_chunk"] else ""
    layers = f", layer by layer in backward passes: {levers['layerwise']}" if levers["layerwise"] else ""
    host = f", {OFFLOAD_WORDS[levers['offload']]} on the host" if levers["offload"] != "none" else ""
    return f"remat {levers['remat']}, {chunk}{blocks}{layers}, {levers['precision']}{stored(storage)}{split}{host}"


def stored(storage: Storage) -> str:
    return "".join(
        f", {name.removesuffix('_bits')} in {getattr(storage, name)} bits"
        for name in STORED
        if getattr(storage, name) < 32
    )
