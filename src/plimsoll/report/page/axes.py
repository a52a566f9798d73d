"""Axes of a chart: positions of values and of ticks, and the ticks' numbers. Pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LARGEST, SMALLEST = 1e300, 1e-290
"""Values beyond the first are drawn at the edge; ends closer than the second count as equal."""


@dataclass(frozen=True)
class Axis:
    """Axis from `low` to `high`, which maps values to positions."""

    label: str
    """Name with the unit."""
    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Returns the position of a value: 0 at the low end, 1 at the high one."""
        low, high, value = self.low, self.high, _tame(value)
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Returns about `most` round values within the axis, each with its number as text."""
        if self.logarithmic:
            # Powers of ten; with 2 and 5 times them if there are few.
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = max(1, len(exponents) // 7)
            factors = (1, 2, 5) if len(exponents) <= 3 else (1,)
            powers = [factor * 10.0**exponent for exponent in exponents[::every] for factor in factors]
            values = [value for value in powers if self.low <= value <= self.high] or [self.low]
            return [(value, _number(value, step=value)) for value in values]
        # Multiples of 1, 2 or 5 times a power of ten.
        raw = (self.high / most) - (self.low / most)
        if not raw > 0 or not math.isfinite(raw):
            return [(self.low, _number(self.low, step=abs(self.high - self.low)))]
        power = 10.0 ** math.floor(math.log10(raw))
        step = next((factor * power for factor in (1, 2, 5) if factor * power >= raw * 0.999), 10 * power)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)] or [self.low]
        step = abs(values[1] - values[0]) if len(values) > 1 else abs(self.high - self.low)
        return [(value, _number(value, step=step)) for value in values]


def axis(
    label: str, values: Sequence[float], *, from_zero: bool = False, logarithmic: bool = False, room: float = 0.04
) -> Axis:
    """Returns an axis around all of `values`.

    Args:
        label: Name with the unit.
        values: Finite numbers.
        from_zero: Whether zero is on the axis.
        logarithmic: Whether it is logarithmic; ignored if a value is not above zero.
        room: Share of the range that is added above, and below if the axis does not start at zero.
    """
    low, high = _tame(min(values, default=0.0)), _tame(max(values, default=1.0))
    if logarithmic and low > SMALLEST:
        low, high = low / 1.1, high * 1.1
        return Axis(label, low, high, logarithmic=True)
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= SMALLEST:
        below, above = (0.0, 1.0) if from_zero else (abs(low) / 2 or 1.0, abs(high) / 2 or 1.0)
        return Axis(label, low - below, high + above)
    spread = (high - low) * room
    return Axis(label, low if from_zero and low == 0 else low - spread, high + spread)


def _tame(value: float) -> float:
    """Returns the value within limits, so that the difference of two is a finite float."""
    return max(-LARGEST, min(LARGEST, value))


def spans_decades(values: Sequence[float]) -> bool:
    """Returns whether a logarithmic axis shows more: all are above zero, and the largest is 30 times the smallest."""
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def _number(value: float, *, step: float) -> str:
    """Returns the value with as many digits as distinguish it from the next tick."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    digits = max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 0
    return f"{value:,.{min(digits, 6)}f}"
