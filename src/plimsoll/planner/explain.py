"""Result of a search: the chosen plan with the reason for the choice, and the plans that it was compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.levers.lever import CLASSES
from plimsoll.planned import Alternative, Ledger, Plan, Planned
from plimsoll.planner.bytes import UNPREPARED
from plimsoll.planner.evidence import Evidence
from plimsoll.planner.frontier import frontier
from plimsoll.planner.objectives import NEAR
from plimsoll.planner.space import Candidate, same_step, smaller
from plimsoll.planner.speed import range_of
from plimsoll.types import Storage
from plimsoll.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Priced:
    """A plan with its predicted bytes and the seconds of its step."""

    plan: Plan
    ledger: Ledger
    seconds: float
    is_timed: bool = False
    """Whether the seconds were timed, and not estimated."""

    @property
    def peak(self) -> int:
        return self.ledger.predicted_peak_bytes


def priced(evidence: Evidence, candidate: Candidate, *, least: bool = False) -> Priced:
    """Returns the candidate's plan with bytes and seconds.

    That is its first variant (`smaller`) that fits; the last one if none fits, or if `least` is set.
    """
    analysis = evidence.compiled.get(candidate) or evidence.by_trace(candidate)
    seconds = evidence.seconds(candidate).likely
    is_timed = candidate in evidence.timed
    variants = [
        Priced(plan, evidence.book(candidate, plan, analysis), seconds, is_timed)
        for plan in smaller(candidate.plan, evidence.problem)
    ]
    fitting = [variant for variant in variants if variant.ledger.fits]
    return fitting[0] if fitting and not least else variants[-1]


def explained(
    evidence: Evidence, candidate: Candidate, compiles: int, ended: str = "", *, least: bool = False
) -> Planned:
    """Returns the result of a search.

    Args:
        evidence: Answers of the compiler.
        candidate: The chosen candidate, which was compiled.
        compiles: Number of steps that were compiled.
        ended: Words about a search that was interrupted or ran out of time (Deadline.words); else empty.
        least: True for the smallest variants (`smaller`) of all plans, even if faster ones fit.
    """
    problem = evidence.problem
    chosen = priced(evidence, candidate, least=least)
    analysis = evidence.compiled[candidate]
    others = [other for other in compared(evidence, least=least) if same_step(other.plan) != same_step(chosen.plan)]
    source = "measured" if chosen.is_timed else "kernels" if analysis.kernel_seconds else "roofline"
    failures = [failure.why for failure in evidence.failed.values()]
    is_text = problem.rate_unit == "tokens"
    return Planned(
        plan=chosen.plan,
        ledger=chosen.ledger,
        recipe=problem.recipe,
        parameters=evidence.static_of(1, Storage()).parameters,
        step_seconds=chosen.seconds,
        step_seconds_source=source,
        step_seconds_range=range_of(
            chosen.seconds, source, platform=problem.platform, loss_chunk=chosen.plan.lever("loss_chunk")
        ),
        step_flops=analysis.flops,
        temporary_bytes=analysis.temp_bytes,
        imported_bytes=evidence.imported_bytes,
        instructions=analysis.instructions,
        trial=evidence.prepared.get(candidate, UNPREPARED).process,
        largest_buffers=analysis.largest,
        chip_flops=evidence.rates.flops[chosen.plan.precision],
        tokens_per_step=problem.effective_batch * problem.rate_per_example if is_text else None,
        examples_per_step=problem.effective_batch,
        sent_bytes=round(analysis.sent_bytes),
        compiles=compiles,
        left_out=tuple(dict.fromkeys([*failures, *evidence.untimed.values()])),
        devices=problem.devices,
        hosts=problem.hosts,
        reason=reason_for(evidence, chosen, others, ended),
        frontier=frontier(evidence, candidate),
        alternatives=tuple(alternative(other, chosen) for other in others[:3]),
    )


def compared(evidence: Evidence, *, least: bool) -> list[Priced]:
    """Returns the plans that fit for certain, the fastest first. If any plan was timed, only timed plans count."""
    fitting = [
        priced(evidence, candidate, least=least)
        for candidate in evidence.candidates()
        if evidence.is_traced(candidate) and evidence.chance(candidate) == 1
    ]
    if evidence.timed:
        fitting = [plan for plan in fitting if plan.is_timed]
    return sorted(fitting, key=lambda plan: plan.seconds)


def reason_for(evidence: Evidence, chosen: Priced, others: list[Priced], ended: str) -> str:
    """Returns a clause with the reason why the plan was chosen, and with its peak memory."""
    problem = evidence.problem
    fastest = min((other.seconds for other in others), default=math.inf)
    slower = max(NEAR - 1, chosen.seconds / fastest - 1)  # a plan that was not compared may be faster still
    percent = math.ceil(100 * slower - 1e-9)
    rank = "the fastest" if chosen.seconds <= fastest else f"within {percent}% of the fastest"
    if ended:
        rank += f"{ended},"
    source = "timed here" if chosen.is_timed else "estimated from the chip's rates"
    plans = f"{len(others) + 1} plans" if others else "1 plan"
    return (
        f"{rank} of {plans} compared ({format_seconds(chosen.seconds)} a step, {source});"
        f" {problem.recipe} has a peak of {format_bytes(chosen.peak)} in the phase '{chosen.ledger.phase}'"
    )


def alternative(other: Priced, chosen: Priced) -> Alternative:
    """Returns a plan that was not chosen, with its differences in seconds and bytes as the reason.

    It may be faster than the chosen plan if both count as equally fast, if time ran out before it was confirmed, or if
    the smallest plan was requested.
    """
    slower = other.seconds / chosen.seconds - 1
    more = other.peak - chosen.peak
    classes = CLASSES.index(other.plan.numerics) - CLASSES.index(chosen.plan.numerics)
    is_equal = chosen.seconds <= other.seconds * NEAR ** (1 + max(0, classes))
    faster = "faster, which counts as equal" if is_equal else "faster" if other.is_timed else "faster as estimated"
    time = f"{abs(slower):.0%} {'slower' if slower >= 0 else faster}"
    size = f"{format_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    return Alternative(
        plan=other.plan,
        predicted_peak_bytes=other.peak,
        step_seconds=other.seconds,
        reason=f"{time}, {size}",
    )
