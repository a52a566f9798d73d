"""What the compiler has answered so far, and the ranges of bytes and seconds that follow from it.

A trace says what a step holds without a compiler (liveness.py), a compile says it exactly, a timing says how long it
takes. Of a candidate that is not compiled yet, the nearest answers say by how much its trace may be off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from statistics import median
from typing import Any, Literal, NamedTuple

from plimsoll.planned import Ledger, Plan
from plimsoll.planner import speed
from plimsoll.planner.between import interpolated
from plimsoll.planner.bytes import UNPREPARED, PlanBytes
from plimsoll.planner.space import Candidate, Combination, Family, StaticOf, smaller
from plimsoll.planner.types import Analysis, Preparation, Problem, Rates


class Range(NamedTuple):
    """A value that is not known exactly: the least, the likeliest and the most."""

    low: float
    likely: float
    high: float

    def times(self, other: Range) -> Range:
        return Range(self.low * other.low, self.likely * other.likely, self.high * other.high)

    def share_below(self, limit: float) -> float:
        """Returns the chance that the value is at most `limit`."""
        if self.high <= limit:
            return 1.0
        if self.low > limit:
            return 0.0
        return (limit - self.low) / (self.high - self.low)

    def gain_below(self, limit: float) -> float:
        """Returns by how much the value is expected to be below `limit`."""
        below = max(0.0, limit - self.low)
        width = self.high - self.low
        if below >= width:
            return max(0.0, limit - self.likely)
        return below**2 / (2 * width)


def around(value: float, spread: float = 0.0) -> Range:
    """Returns the range of a value that may be off by the share `spread`."""
    low = value * (1 - spread)
    high = value * (1 + spread)
    return Range(low, value, high)


UNSEEN = Range(0.75, 1.0, 1.9)
"""Compiled over traced bytes of a model of which nothing was compiled."""
ALIKE = 0.15
"""Share by which that ratio may differ between levers that the compiler treats alike."""
DOUBLED = 0.04
"""Share by which it may differ for each doubling of the micro-batch."""
ORDERED = 0.1
"""Share by which a lever's next value may need more, although it is meant to need less."""
UNTIMED = Range(speed.UNTIMED[0], 1.0, speed.UNTIMED[1])
"""Seconds by the clock over estimated ones, of a model of which nothing was timed."""
NO_STEP = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, flops=0.0)
"""Analysis of a process that does not train."""
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""XLA's word in the refusal of a compiler or an allocator that lacks the memory."""

Verb = Literal["trace", "compile", "time", "prepare"]


class Inquiry(NamedTuple):
    """A question to the compiler about a candidate."""

    verb: Verb
    candidate: Candidate


class Failure(NamedTuple):
    """The reason why there was no answer."""

    verb: Verb
    why: str


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps what a method returns until something is learned."""

    @wraps(method)
    def once(self: Evidence, *about: Any) -> Any:
        key = (method.__name__, *about)
        if key not in self.memory:
            self.memory[key] = method(self, *about)
        return self.memory[key]

    return once


@dataclass
class Evidence:
    """Answers about the candidates of a problem, and what follows from them."""

    problem: Problem
    rates: Rates
    static_of: StaticOf
    space: Sequence[Combination]
    imported_bytes: int
    """Weight of a process that has imported what training imports."""
    traced: dict[Family, Mapping[int, Analysis]] = field(default_factory=dict)
    """Traces by micro-batch, of all that only store state and weights otherwise."""
    compiled: dict[Candidate, Analysis] = field(default_factory=dict)
    timed: dict[Candidate, float] = field(default_factory=dict)
    """Seconds of a step by the clock."""
    prepared: dict[Candidate, Preparation] = field(default_factory=dict)
    """What runs of candidates take besides their step."""
    failed: dict[Candidate, Failure] = field(default_factory=dict)
    untimed: dict[Candidate, str] = field(default_factory=dict)
    """Candidates that this CPU could not time, although it may train them, and why."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """What followed from the answers so far."""

    @cached_property
    def children(self) -> dict[Combination, list[Combination]]:
        """Combinations with one lever at a later value: smaller, and slower where nothing is known."""
        children: dict[Combination, list[Combination]] = {each: [] for each in self.space}
        for child in self.space:
            for parent in child.parents:
                children[parent].append(child)
        return children

    def candidates(self) -> list[Candidate]:
        """Returns the candidates that have not failed, those of the fastest combination first."""
        return [each for combination in self.space for each in combination.candidates if each not in self.failed]

    def is_traced(self, candidate: Candidate) -> bool:
        return candidate.combination.family in self.traced

    # Bytes.

    @remembered
    def temporaries(self, candidate: Candidate) -> Range:
        """Returns the bytes that a step needs beside its state."""
        # Compiled: exact.
        if candidate in self.compiled:
            return around(self.compiled[candidate].beyond_state_bytes)

        # Traced: a range around the trace.
        if self.is_traced(candidate):
            traced = around(self.traced_bytes(candidate))
            return traced.times(likely_ratio(self.byte_ratios(), candidate, UNSEEN))

        # Neither: at least what levers that save more need, and who knows how much more.
        least = (1 - ORDERED) * self.least_temporaries(candidate)
        most = max(least, self.problem.budget_bytes)
        return Range(least, least, most)

    @remembered
    def least_temporaries(self, candidate: Candidate) -> float:
        """Returns the least bytes by the levers that save more."""
        if self.is_traced(candidate):
            return self.temporaries(candidate).low
        children = candidate.among(self.children[candidate.combination])
        return max((self.least_temporaries(child) for child in children), default=0.0)

    def traced_bytes(self, candidate: Candidate) -> float:
        traces = self.traced[candidate.combination.family]
        traced = interpolated(candidate.micro, traces)
        return max(1.0, traced.beyond_state_bytes)

    @remembered
    def byte_ratios(self) -> dict[Candidate, float]:
        """Returns compiled over traced bytes of all that was compiled."""
        return {
            candidate: analysis.beyond_state_bytes / self.traced_bytes(candidate)
            for candidate, analysis in self.compiled.items()
        }

    @remembered
    def second_ratios(self) -> dict[Candidate, float]:
        """Returns seconds over those by the trace: by the clock where plans are timed, else by the compiled step."""
        compiled = {candidate: self.by_rates(candidate, analysis) for candidate, analysis in self.compiled.items()}
        known = self.timed if self.problem.measure else compiled
        return {candidate: seconds / self.seconds_by_trace(candidate) for candidate, seconds in known.items()}

    def book(self, candidate: Candidate, plan: Plan, analysis: Analysis) -> Ledger:
        """Returns the ledger of a variant of the candidate's plan."""
        plan_bytes = PlanBytes(
            plan=plan,
            problem=self.problem,
            static=self.static_of(plan.fsdp, plan.storage),
            analysis=analysis,
            imported_bytes=self.imported_bytes,
            preparation=self.prepared.get(candidate, UNPREPARED),
        )
        return plan_bytes.ledger()

    def instructions(self, candidate: Candidate) -> int:
        """Returns how many instructions its step is likely to have; at least, where nobody traced it."""
        combination = candidate.combination
        compiled = [step.instructions for other, step in self.compiled.items() if other.combination is combination]
        if compiled:
            return compiled[-1]
        traces = [self.traced[combination.family]] if combination.family in self.traced else self.traced.values()
        return min((trace.instructions for of_one in traces for trace in of_one.values()), default=0)

    def by_trace(self, candidate: Candidate) -> Analysis:
        """Returns the trace with the temporaries that the compiler has, or is likely to have."""
        traced = interpolated(candidate.micro, self.traced[candidate.combination.family])
        return with_temporaries(traced, self.temporaries(candidate).likely)

    @remembered
    def books(self, candidate: Candidate) -> list[Ledger]:
        """Returns the ledgers of its smallest variant, for the least, the likeliest and the most temporaries."""
        *_, least = smaller(candidate.plan, self.problem)
        if candidate in self.compiled:
            return [self.book(candidate, least, self.compiled[candidate])] * 3
        step = replace(NO_STEP, instructions=self.instructions(candidate))
        analyses = [with_temporaries(step, size) for size in self.temporaries(candidate)]
        return [self.book(candidate, least, analysis) for analysis in analyses]

    def needed(self, candidate: Candidate) -> Range:
        """Returns the smallest budget that the candidate fits in."""
        return Range(*(book.needed_bytes for book in self.books(candidate)))

    def chance(self, candidate: Candidate) -> float:
        """Returns the chance that the candidate fits: 0 or 1 once it was compiled."""
        host = self.books(candidate)[0].host
        if host is not None and not host.fits:
            return 0.0
        return self.needed(candidate).share_below(self.problem.budget_bytes)

    # Seconds.

    @remembered
    def seconds(self, candidate: Candidate) -> Range:
        """Returns the seconds of a step: by the clock where plans are timed, else by the rates of the chip."""
        # Not traced: at best as fast as its dearest parent, beyond what rates can tell.
        combination = candidate.combination
        if not self.is_traced(candidate):
            hope = combination.hope if self.problem.measure else 1.0
            return around(hope * self.least_seconds(candidate))

        # A CPU could not time it: no hope is set on it.
        by_trace = self.seconds_by_trace(candidate)
        if candidate in self.untimed:
            return around(UNTIMED.high * by_trace)

        # As much slower than by its trace as the nearest of which that is known.
        unseen = UNTIMED if self.problem.measure else around(1.0)
        slower = likely_ratio(self.second_ratios(), candidate, unseen)
        if self.problem.measure and candidate not in self.timed:
            slower = slower._replace(low=min(slower.low, combination.hope * slower.likely))
        return around(by_trace).times(slower)

    def seconds_by_trace(self, candidate: Candidate) -> float:
        return self.by_rates(candidate, self.by_trace(candidate))

    def least_seconds(self, candidate: Candidate) -> float:
        """Returns the seconds of the dearest parent with this micro-batch; where no parent has it, of the fastest."""
        parents = candidate.combination.parents
        alike = [self.seconds(parent).likely for parent in candidate.among(parents)]
        if alike:
            return max(alike)
        others = [other for parent in parents for other in parent.candidates]
        return min((self.seconds(other).likely for other in others), default=0.0)

    def by_rates(self, candidate: Candidate, analysis: Analysis) -> float:
        """Returns the seconds of a step by the rates, as this analysis has it."""
        plan = candidate.plan
        problem = self.problem
        static = self.static_of(plan.fsdp, plan.storage)
        sharing = problem.devices // problem.hosts if problem.platform == "cpu" else 1  # the cores of one machine
        return speed.step_seconds(plan, analysis, static, self.rates, devices=problem.devices, sharing=sharing)

    # What is learned.

    def learn(self, inquiry: Inquiry, answer: Any) -> None:
        """Adds an answer. A trace is that of all levers that only store state and weights otherwise."""
        self.memory.clear()
        candidate = inquiry.candidate
        match inquiry.verb:
            case "trace":
                self.traced[candidate.combination.family] = answer
            case "compile":
                self.compiled[candidate] = answer
            case "time":
                self.timed[candidate] = answer
            case "prepare":
                self.prepared[candidate] = answer

    def fail(self, inquiry: Inquiry, why: str) -> None:
        """Adds that there is no answer, for all candidates of which that says as much."""
        self.memory.clear()
        candidate = inquiry.candidate
        words = f"{candidate.words}: {why}"

        # A CPU may train what it cannot time.
        if inquiry.verb == "time" and self.problem.platform == "cpu":
            self.untimed[candidate] = f"could not be timed: {words}"
            return

        if inquiry.verb == "time":
            words = f"cannot run: {words}"
        failing = [candidate]
        if inquiry.verb == "trace":
            failing = candidate.combination.candidates
        elif inquiry.verb == "compile" and OUT_OF_MEMORY in why:
            failing = [other for other in candidate.combination.candidates if other.micro >= candidate.micro]
        self.failed.update(dict.fromkeys(failing, Failure(inquiry.verb, words)))


def with_temporaries(analysis: Analysis, temporaries: float) -> Analysis:
    """Returns the analysis of a step that needs so many bytes beside its state."""
    return replace(analysis, temp_bytes=round(temporaries), output_bytes=0, alias_bytes=0, peak_bytes=0)


def likely_ratio(ratios: Mapping[Candidate, float], candidate: Candidate, unseen: Range) -> Range:
    """Returns the ratio of what is known to what a trace says, by the nearest candidate of which it is known.

    Args:
        ratios: The ratio, where it is known.
        candidate: The candidate that it is wanted of.
        unseen: The ratio where nothing like it is known.
    """
    # Other micro-batches of the same levers.
    same = [other for other in ratios if other.combination is candidate.combination]
    if same:
        nearest = min(same, key=candidate.doublings_to)
        doublings = candidate.doublings_to(nearest)
        spread = min(ALIKE, DOUBLED * doublings)
        return around(ratios[nearest], spread)

    # Other levers that this compiler treats alike.
    apart = candidate.combination.apart
    others = [ratio for other, ratio in ratios.items() if other.combination.apart == apart]
    if others:
        low = (1 - ALIKE) * min(others)
        high = (1 + ALIKE) * max(others)
        return Range(low, median(others), high)

    return unseen
