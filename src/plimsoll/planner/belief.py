"""What is believed of every candidate before the compiler has said it: an interval of bytes, and one of seconds.

Four sources, each with its error: a traced step
(liveness.py), whose temporaries are counted without a compiler; the compiler's answers for the same levers with another
micro-batch; its answers for other levers, which say how far a trace is off for this model; and the order of the levers,
of which each value is faster and larger than the next. The state is exact, from shapes.

Errors are taken from a few plans of each kind (notes, "Plans in seconds"): too wide costs a compile, too narrow a
better plan. Some plans were further off than they are taken to be, most of them those with bfloat16 activations on a
CPU (notes, "What beliefs are off by").
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from plimsoll.planner.estimate import interpolated
from plimsoll.planner.space import Combination
from plimsoll.planner.speed import UNTIMED
from plimsoll.planner.types import Analysis

UNSEEN = (0.75, 1.9)
"""Compiled over traced temporaries of a model of which nothing was compiled yet."""
ALIKE = 0.15
"""The same, as a share of what it was for other levers of this model, but for those that set apart."""
DOUBLED = 0.04
"""The same, as a share of what it was for the same levers, for each doubling of the micro-batch."""
STRETCHED = 0.1
"""Share by which a trace may be above a line through others, for each doubling beyond them."""
ORDERED = 0.1
"""Share by which a lever's next value may need more, although it is meant to need less."""
STORED = 0.25
"""Share by which temporaries may differ where only the storage of state and weights does."""
TIMED_ALIKE = 0.25
"""The same, as a share of what it was for other levers of this model."""
TIMED_STORED = 0.04
"""The same, where only the storage of state and weights differs."""
COMPILED_ALIKE = 0.12
COMPILED_DOUBLED = 0.03
"""The same two for the seconds of what the compiler made, by the rates."""
TIMED_DOUBLED = 0.08
"""The same, as a share of what it was for the same levers, for each doubling of the micro-batch."""

HOPED = 2
"""How many times what may be gained an interval is taken to reach, at most, where least bytes are looked for: there a
wide one says that nobody knows, and not that there is no hope."""


class Interval(NamedTuple):
    """Range of a value that is not known exactly, and its likeliest value."""

    low: float
    likely: float
    high: float

    def times(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.likely * factor, self.high * factor)

    def share_below(self, limit: float) -> float:
        """Returns how likely the value is at most `limit`, were all values in between as likely."""
        if self.high <= limit:
            return 1.0
        if limit < self.low:
            return 0.0
        return 0.5 if self.high == math.inf else (limit - self.low) / (self.high - self.low)

    def expected_gain(self, over: float) -> float:
        """Returns by how much the value is expected to be below `over`; what is above it gains nothing."""
        if over <= self.low:
            return 0.0
        if self.high == math.inf:
            return (over - self.low) / 2
        if over >= self.high:
            return over - (self.low + self.high) / 2
        return (over - self.low) ** 2 / (2 * (self.high - self.low))


def with_hope(value: Interval, over: float) -> Interval:
    """Returns the interval cut where it is so wide that a value well below `over` would count as nearly impossible."""
    most = value.low + HOPED * max(0.0, over - value.low)
    return value if value.high <= most else Interval(value.low, min(value.likely, most), most)


def exactly(value: float) -> Interval:
    """Returns the interval of a value that is known."""
    return Interval(value, value, value)


UNKNOWN = Interval(0.0, math.inf, math.inf)


@dataclass(eq=False)
class Known:
    """Answers about one combination so far, by micro-batch."""

    traced: dict[int, Analysis] = field(default_factory=dict)
    compiled: dict[int, Analysis] = field(default_factory=dict)
    slower: dict[int, float] = field(default_factory=dict)
    """Seconds of a step over those by its trace: by the clock, or by what the compiler made, where nothing is timed."""
    untimed: set[int] = field(default_factory=set)
    """Those that this machine could not time, although it may train them."""
    too_large_from: float = math.inf
    """The smallest micro-batch for which the compiler lacked memory."""


class Beliefs:
    """Beliefs about all candidates of a search. `known` is what they follow from; nothing else is kept."""

    def __init__(self, combinations: Iterable[Combination]) -> None:
        self.known = {each: Known() for each in combinations}
        self._temporaries: dict[tuple[Combination, int], Interval] = {}
        self._least: dict[tuple[Combination, int], float] = {}
        by_family: dict[tuple[Any, ...], list[Combination]] = {}
        for each in self.known:
            by_family.setdefault(each.family, []).append(each)
        self._family = {each: by_family[each.family] for each in self.known}
        self._children: dict[Combination, list[Combination]] = {each: [] for each in self.known}
        for each in self.known:
            for parent in each.parents:
                self._children[parent].append(each)

    def traced(self, combination: Combination, found: Mapping[int, Analysis]) -> None:
        """Learns the trace of a combination, and of those that only store state and weights otherwise."""
        for each in self._family[combination]:
            if each is combination or not self.known[each].traced:
                self.known[each].traced = dict(found)

    def is_last(self, combination: Combination, micro: int) -> bool:
        """Returns whether no lever has a further value for this micro-batch."""
        children = self._children[combination]
        return all(micro not in child.plans and self.is_last(child, micro) for child in children)

    def learned(self) -> None:
        """Forgets what followed from less."""
        self._temporaries.clear()
        self._least.clear()

    def temporaries(self, combination: Combination, micro: int) -> Interval:
        """Returns the bytes that a step is believed to need beyond its state."""
        key = combination, micro
        if key not in self._temporaries:
            self._temporaries[key] = self._believed(combination, micro)
        return self._temporaries[key]

    def _believed(self, combination: Combination, micro: int) -> Interval:
        known = self.known[combination]
        if micro >= known.too_large_from:
            return UNKNOWN._replace(low=math.inf)
        if micro in known.compiled:
            return exactly(known.compiled[micro].beyond_state_bytes)
        if known.traced:
            ratio, traced = self._ratio(combination, micro), _line(known.traced, micro)
            low, likely, high = (one * other for one, other in zip(ratio, traced, strict=True))
            return self._between_compiled(combination, micro, Interval(low, likely, high))
        return self._by_order(combination, micro)

    def _between_compiled(self, combination: Combination, micro: int, believed: Interval) -> Interval:
        """Returns a belief narrowed by what was compiled of levers that need more, and of levers that need less.

        Where those contradict it, it stays as it is.
        """
        compiled = (self.known[each].compiled.get(micro) for each in combination.parents)
        most = min((each.beyond_state_bytes for each in compiled if each is not None), default=math.inf)
        compiled = (self.known[each].compiled.get(micro) for each in self._children[combination])
        least = max((each.beyond_state_bytes for each in compiled if each is not None), default=0)
        low, high = max(believed.low, least * (1 - ORDERED)), min(believed.high, most * (1 + ORDERED))
        return Interval(low, min(max(low, believed.likely), high), high) if low <= high else believed

    def _ratio(self, combination: Combination, micro: int) -> Interval:
        """Returns how many times the traced bytes the compiled ones are."""
        if ratios := _ratios(self.known[combination]):
            return _near(ratios, micro, DOUBLED, ALIKE, UNSEEN)
        family = {
            micro: ratio for each in self._family[combination] for micro, ratio in _ratios(self.known[each]).items()
        }
        if family:
            low, likely, high = _near(family, micro, DOUBLED, ALIKE, UNSEEN)
            return Interval(low * (1 - STORED), likely, high * (1 + STORED))
        others = [
            ratio
            for each, known in self.known.items()
            if each.apart == combination.apart
            for ratio in _ratios(known).values()
        ]
        if not others:
            return Interval(UNSEEN[0], 1.0, UNSEEN[1])
        apart = math.sqrt(max(others) / min(others))  # where traces are off differently, others may be off by more
        low, high = min(others) * (1 - ALIKE) / apart, max(others) * (1 + ALIKE) * apart
        return Interval(low, statistics.median(others), high)

    def _by_order(self, combination: Combination, micro: int) -> Interval:
        """Returns what follows from levers that need more, and from those that need less."""
        above = [self.temporaries(each, micro) for each in combination.parents if micro in each.plans]
        high = min((bytes_.high for bytes_ in above if bytes_.high < math.inf), default=math.inf) * (1 + ORDERED)
        low = self._least_by_order(combination, micro) * (1 - ORDERED)
        low = min(low, high)
        return Interval(low, (low + high) / 2, high)

    def _least_by_order(self, combination: Combination, micro: int) -> float:
        key = combination, micro
        if key not in self._least:
            found = 0.0
            for child in self._children[combination]:
                if micro in child.plans:
                    traced = self.known[child].traced
                    least = self.temporaries(child, micro).low if traced else self._least_by_order(child, micro)
                    found = max(found, least)
            self._least[key] = found
        return self._least[key]

    def slower(self, combination: Combination, micro: int, *, timed: bool) -> Interval:
        """Returns how many times as long as by a trace a step takes: by the clock, or by what the compiler made."""
        doubled, alike = (TIMED_DOUBLED, TIMED_ALIKE) if timed else (COMPILED_DOUBLED, COMPILED_ALIKE)
        known = self.known[combination]
        if micro in known.slower:
            return exactly(known.slower[micro])
        if micro in known.untimed:  # this machine could not hold it: no hope is set on it
            return exactly(UNTIMED[1])
        if known.slower:
            return _near(known.slower, micro, doubled, alike, UNTIMED)
        family = {
            other: ratio for each in self._family[combination] for other, ratio in self.known[each].slower.items()
        }
        if family:
            low, likely, high = _near(family, micro, doubled, alike, UNTIMED)
            return Interval(low * (1 - TIMED_STORED), likely, high * (1 + TIMED_STORED))
        others = [ratio for each in self.known.values() for ratio in each.slower.values()]
        if not others:
            return Interval(min(UNTIMED[0], combination.hope), 1.0, UNTIMED[1])
        likely = statistics.median(others)
        low, high = max(min(others), likely / 2) * (1 - alike), min(max(others), 2 * likely) * (1 + alike)
        if not UNTIMED[0] <= likely <= UNTIMED[1]:  # nothing like what was ever seen: who knows what others are like
            low, high = min(low, UNTIMED[0]), max(high, UNTIMED[1])
        return Interval(min(low, combination.hope * likely), likely, high)


def with_temporaries(analysis: Analysis, beyond_state: float) -> Analysis:
    """Returns the analysis of a step that needs so many bytes beyond its state."""
    return replace(analysis, temp_bytes=round(beyond_state), output_bytes=0, alias_bytes=0, peak_bytes=0)


def _line(traced: Mapping[int, Analysis], micro: int) -> Interval:
    """Returns the bytes that a trace of this micro-batch would count, from those of others.

    What is alive at the same time is the largest of several sums, each linear in the micro-batch: between two that were
    traced it is at most on the line through them, and everywhere at least on a line through two others.
    """
    bytes_ = {each: float(traced[each].beyond_state_bytes) for each in sorted(traced)}
    if micro in bytes_:
        return exactly(bytes_[micro])
    if len(bytes_) == 1:
        return _stretched(interpolated(micro, traced).beyond_state_bytes, micro, bytes_)
    pairs = list(itertools.pairwise(bytes_))
    lines = [_through(bytes_, *pair, micro) for pair in pairs if not pair[0] < micro < pair[1]]
    least = max(max(lines, default=0.0), max((size for each, size in bytes_.items() if each < micro), default=0.0))
    inside = next((pair for pair in pairs if pair[0] < micro < pair[1]), None)
    if inside is not None:
        most = _through(bytes_, *inside, micro)
        return Interval(min(least, most), most, most)
    if micro < min(bytes_):
        most = bytes_[min(bytes_)]
        least = max(least, most * micro / min(bytes_))
        return Interval(min(least, most), least, most)
    return _stretched(least, micro, bytes_)._replace(low=least)


def _through(bytes_: Mapping[int, float], one: int, other: int, micro: int) -> float:
    return bytes_[one] + (bytes_[other] - bytes_[one]) * (micro - one) / (other - one)


def _stretched(likely: float, micro: int, bytes_: Mapping[int, float]) -> Interval:
    spread = min(ALIKE, STRETCHED * min(abs(math.log2(micro / each)) for each in bytes_))
    return Interval(likely * (1 - spread), likely, likely * (1 + spread))


def _ratios(known: Known) -> dict[int, float]:
    return {
        micro: analysis.beyond_state_bytes / max(1.0, _line(known.traced, micro).likely)
        for micro, analysis in known.compiled.items()
        if known.traced
    }


def _near(ratios: dict[int, float], micro: int, error: float, most: float, expected: tuple[float, float]) -> Interval:
    """Returns the ratio on a line between the nearest two, with an `error` for each doubling from the nearest one."""
    below = max((each for each in ratios if each <= micro), default=None)
    above = min((each for each in ratios if each >= micro), default=None)
    if below is None or above is None:
        ratio = ratios[below if below is not None else above]  # type: ignore[index]
    else:
        share = (micro - below) / (above - below) if above > below else 0.0
        ratio = ratios[below] + share * (ratios[above] - ratios[below])
    doublings = min(abs(math.log2(micro / each)) for each in ratios)
    spread = min(most, error * doublings)
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    if doublings and not expected[0] <= ratio <= expected[1]:  # nothing like what was ever seen: who knows what is next
        low, high = min(low, expected[0]), max(high, expected[1])
    return Interval(low, ratio, high)
