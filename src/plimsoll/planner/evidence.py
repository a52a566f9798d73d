"""Answers of the compiler so far, and the ranges of bytes and seconds that are estimated from them.

A trace gives an estimate of a step's bytes (liveness.py), a compile the exact bytes, and a timing the seconds. For a
candidate plan that is only traced, the range comes from the errors of the traces of similar, compiled candidates.
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
    """Range of an uncertain value: its lowest, likeliest and highest value."""

    low: float
    likely: float
    high: float

    def times(self, other: Range) -> Range:
        return Range(self.low * other.low, self.likely * other.likely, self.high * other.high)

    def share_below(self, limit: float) -> float:
        """Returns the probability, from 0 to 1, that the value is at most `limit`."""
        if self.high <= limit:
            return 1.0
        if self.low > limit:
            return 0.0
        return (limit - self.low) / (self.high - self.low)

    def gain_below(self, limit: float) -> float:
        """Returns the expected amount by which the value is below `limit`."""
        below = max(0.0, limit - self.low)
        width = self.high - self.low
        if below >= width:
            return max(0.0, limit - self.likely)
        return below**2 / (2 * width)


def around(value: float, spread: float = 0.0) -> Range:
    """Returns the range of a value that may be higher or lower by the share `spread`."""
    low = value * (1 - spread)
    high = value * (1 + spread)
    return Range(low, value, high)


UNSEEN = Range(0.75, 1.0, 1.9)
"""Assumed ratio of compiled to traced bytes for a model of which no step was compiled."""
ALIKE = 0.15
"""Share by which the ratio of compiled to traced bytes may differ between plans that the compiler treats alike."""
DOUBLED = 0.04
"""Share by which the ratio of compiled to traced bytes may differ for each doubling of the micro-batch."""
ORDERED = 0.1
"""Share by which a plan may need more bytes than one with a faster setting, although fewer are expected."""
UNTIMED = Range(speed.UNTIMED[0], 1.0, speed.UNTIMED[1])
"""Assumed ratio of timed to estimated seconds for a model of which no step was timed."""
NO_STEP = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, flops=0.0)
"""Analysis of an empty step. Estimated bytes of temporaries are added to it."""
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""Word in the error message of an XLA compiler or allocator that lacks memory."""

Verb = Literal["trace", "compile", "time", "prepare"]


class Inquiry(NamedTuple):
    """A question to the compiler about a candidate plan."""

    verb: Verb
    candidate: Candidate


class Failure(NamedTuple):
    """A question without an answer, and the reason."""

    verb: Verb
    why: str


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of `Evidence`: caches its results until the next answer or failure."""

    @wraps(method)
    def once(self: Evidence, *about: Any) -> Any:
        key = (method.__name__, *about)
        if key not in self.cache:
            self.cache[key] = method(self, *about)
        return self.cache[key]

    return once


@dataclass
class Evidence:
    """Traces, compilations and timings of a problem's candidate plans, with the estimates derived from them."""

    problem: Problem
    rates: Rates
    static_of: StaticOf
    space: Sequence[Combination]
    imported_bytes: int
    """Resident memory of a process after training's imports, in bytes."""
    traced: dict[Family, Mapping[int, Analysis]] = field(default_factory=dict)
    """Traces by micro-batch, for each family. A family's plans differ only in micro-batch and bits of stored state."""
    compiled: dict[Candidate, Analysis] = field(default_factory=dict)
    timed: dict[Candidate, float] = field(default_factory=dict)
    """Timed seconds of a step, by candidate."""
    prepared: dict[Candidate, Preparation] = field(default_factory=dict)
    """Bytes of initialisation, of evaluation and of the process itself, by candidate."""
    failed: dict[Candidate, Failure] = field(default_factory=dict)
    untimed: dict[Candidate, str] = field(default_factory=dict)
    """Reasons why this CPU failed to time a candidate that it may be able to train, by candidate."""
    cache: dict[Any, Any] = field(default_factory=dict)
    """Estimates derived from the answers so far, by method and arguments."""

    @cached_property
    def children(self) -> dict[Combination, list[Combination]]:
        """Children of each combination of settings. Each differs in one setting, and should be smaller but slower."""
        children: dict[Combination, list[Combination]] = {each: [] for each in self.space}
        for child in self.space:
            for parent in child.parents:
                children[parent].append(child)
        return children

    def candidates(self) -> list[Candidate]:
        """Returns the candidate plans that have not failed, roughly from the fastest to the smallest in memory."""
        return [each for combination in self.space for each in combination.candidates if each not in self.failed]

    def is_traced(self, candidate: Candidate) -> bool:
        return candidate.combination.family in self.traced

    # Estimates of bytes.

    @remembered
    def temporaries(self, candidate: Candidate) -> Range:
        """Returns the range of the bytes that a candidate's step needs besides the training state."""
        # Compiled: the bytes are exact.
        if candidate in self.compiled:
            return around(self.compiled[candidate].beyond_state_bytes)

        # Traced: multiply the traced bytes by the likely ratio of compiled to traced bytes.
        if self.is_traced(candidate):
            traced = around(self.traced_bytes(candidate))
            return traced.times(likely_ratio(self.byte_ratios(), candidate, UNSEEN))

        # Neither: from the bytes of plans that should need less, up to the budget.
        least = (1 - ORDERED) * self.least_temporaries(candidate)
        most = max(least, self.problem.budget_bytes)
        return Range(least, least, most)

    @remembered
    def least_temporaries(self, candidate: Candidate) -> float:
        """Returns a lower bound on the bytes of a candidate's step: from its trace, or else from smaller plans."""
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
        """Returns the ratio of compiled to traced bytes for each compiled candidate."""
        return {
            candidate: analysis.beyond_state_bytes / self.traced_bytes(candidate)
            for candidate, analysis in self.compiled.items()
        }

    @remembered
    def second_ratios(self) -> dict[Candidate, float]:
        """Returns the ratio of true seconds to those estimated from a trace, for each candidate whose ratio is known.

        True seconds are timed if the problem times plans, and otherwise estimated from the compiled step.
        """
        compiled = {candidate: self.by_rates(candidate, analysis) for candidate, analysis in self.compiled.items()}
        known = self.timed if self.problem.measure else compiled
        return {candidate: seconds / self.seconds_by_trace(candidate) for candidate, seconds in known.items()}

    def book(self, candidate: Candidate, plan: Plan, analysis: Analysis) -> Ledger:
        """Returns the ledger (bytes by component) of `plan`, a variant of the candidate's plan."""
        plan_bytes = PlanBytes(
            plan=plan,
            problem=self.problem,
            static=self.static_of(plan.fsdp, plan.storage),
            analysis=analysis,
            imported_bytes=self.imported_bytes,
            preparation=self.prepared.get(candidate, UNPREPARED),
        )
        return plan_bytes.ledger()

    def code_of(self, candidate: Candidate) -> Analysis:
        """Returns an analysis with only the likely number of instructions, and whether code is read from files.

        For a candidate that is not traced, the number is the smallest of any trace.
        """
        combination = candidate.combination
        compiled = [step for other, step in self.compiled.items() if other.combination is combination]
        traces = [self.traced[combination.family]] if combination.family in self.traced else self.traced.values()
        known = compiled[-1:] or [trace for of_one in traces for trace in of_one.values()]
        least = min(known, key=lambda step: step.instructions, default=NO_STEP)
        return replace(NO_STEP, instructions=least.instructions, is_filed=least.is_filed)

    def by_trace(self, candidate: Candidate) -> Analysis:
        """Returns the candidate's trace with the compiler's bytes of temporaries, or likely bytes if not compiled."""
        traced = interpolated(candidate.micro, self.traced[candidate.combination.family])
        return with_temporaries(traced, self.temporaries(candidate).likely)

    @remembered
    def books(self, candidate: Candidate) -> list[Ledger]:
        """Returns three ledgers of the plan's smallest variant: for the fewest, likeliest and most temporaries."""
        *_, least = smaller(candidate.plan, self.problem)
        if candidate in self.compiled:
            return [self.book(candidate, least, self.compiled[candidate])] * 3
        code = self.code_of(candidate)
        analyses = [with_temporaries(code, size) for size in self.temporaries(candidate)]
        return [self.book(candidate, least, analysis) for analysis in analyses]

    def needed(self, candidate: Candidate) -> Range:
        """Returns the range of the smallest budget that the candidate fits."""
        return Range(*(book.needed_bytes for book in self.books(candidate)))

    def chance(self, candidate: Candidate) -> float:
        """Returns the probability that the candidate fits the budget: 0 or 1 once it was compiled."""
        host = self.books(candidate)[0].host
        if host is not None and not host.fits:
            return 0.0
        return self.needed(candidate).share_below(self.problem.budget_bytes)

    # Estimates of seconds.

    @remembered
    def seconds(self, candidate: Candidate) -> Range:
        """Returns the range of a step's seconds: timed if the problem times plans, else from the chip's rates."""
        # Not traced: take the seconds of its slowest parent, a plan with one faster setting. Where plans are timed, a
        # setting may be faster than predicted from rates (`hope`).
        combination = candidate.combination
        if not self.is_traced(candidate):
            hope = combination.hope if self.problem.measure else 1.0
            return around(hope * self.least_seconds(candidate))

        # This CPU failed to time the candidate: assume the slowest.
        by_trace = self.seconds_by_trace(candidate)
        if candidate in self.untimed:
            return around(UNTIMED.high * by_trace)

        # Multiply the seconds estimated from the trace by the known ratio of the most similar candidates.
        unseen = UNTIMED if self.problem.measure else around(1.0)
        slower = likely_ratio(self.second_ratios(), candidate, unseen)
        if self.problem.measure and candidate not in self.timed:
            slower = slower._replace(low=min(slower.low, combination.hope * slower.likely))
        return around(by_trace).times(slower)

    def seconds_by_trace(self, candidate: Candidate) -> float:
        return self.by_rates(candidate, self.by_trace(candidate))

    def least_seconds(self, candidate: Candidate) -> float:
        """Returns the likely seconds of the slowest parent with the candidate's micro-batch.

        A parent has one faster setting. If no parent has that micro-batch, returns the likely seconds of the fastest
        candidate of any parent.
        """
        parents = candidate.combination.parents
        alike = [self.seconds(parent).likely for parent in candidate.among(parents)]
        if alike:
            return max(alike)
        others = [other for parent in parents for other in parent.candidates]
        return min((self.seconds(other).likely for other in others), default=0.0)

    def by_rates(self, candidate: Candidate, analysis: Analysis) -> float:
        """Returns the seconds of a step, estimated from an analysis and the chip's rates."""
        plan = candidate.plan
        problem = self.problem
        static = self.static_of(plan.fsdp, plan.storage)
        sharing = problem.devices // problem.hosts if problem.platform == "cpu" else 1  # devices that share the cores
        return speed.step_seconds(plan, analysis, static, self.rates, devices=problem.devices, sharing=sharing)

    # The methods below change the evidence.

    def learn(self, inquiry: Inquiry, answer: Any) -> None:
        """Adds the answer to an inquiry. A trace also holds for plans that differ only in the bits of stored state."""
        self.cache.clear()
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
        """Marks an inquiry's candidate as failed, and the candidates that would fail for the same reason.

        A failed trace also fails all other micro-batches. A compile without enough memory also fails the larger ones.
        """
        self.cache.clear()
        candidate = inquiry.candidate
        words = f"{candidate.words}: {why}"

        # A CPU may be able to train a plan that it failed to time.
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
    """Returns the analysis with `temporaries` as the bytes of the step besides the training state."""
    return replace(analysis, temp_bytes=round(temporaries), output_bytes=0, alias_bytes=0, peak_bytes=0)


def likely_ratio(ratios: Mapping[Candidate, float], candidate: Candidate, unseen: Range) -> Range:
    """Returns the likely ratio of compiled to traced bytes (or true to traced seconds), from similar candidates.

    Args:
        ratios: Known ratios by candidate.
        candidate: Candidate to estimate the ratio for.
        unseen: Ratio to return if no similar candidate has a known one.
    """
    # Use the nearest micro-batch with the same settings, if its ratio is known.
    same = [other for other in ratios if other.combination is candidate.combination]
    if same:
        nearest = min(same, key=candidate.doublings_to)
        doublings = candidate.doublings_to(nearest)
        spread = min(ALIKE, DOUBLED * doublings)
        return around(ratios[nearest], spread)

    # Else use all candidates with other settings that this compiler treats alike.
    apart = candidate.combination.apart
    others = [ratio for other, ratio in ratios.items() if other.combination.apart == apart]
    if others:
        low = (1 - ALIKE) * min(others)
        high = (1 + ALIKE) * max(others)
        return Range(low, median(others), high)

    return unseen
