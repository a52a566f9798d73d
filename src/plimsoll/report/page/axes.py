"""Where the ticks of an axis stand, and how they are written: pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LARGEST, SMALLEST = 1e300, 1e-290
"""Beyond the first values are drawn at the edge; ends closer than the second count as one."""


@dataclass(frozen=True)
class Axis:
    """From values to places: `label` says the unit."""

    label: str
    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        low, high, value = (self._scaled(one) for one in (self.low, self.high, _tame(value)))
        return (value - low) / (high - low)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        values = _powers(self.low, self.high) if self.logarithmic else _round_numbers(self.low, self.high, most)
        step = abs(values[1] - values[0]) if len(values) > 1 else abs(self.high - self.low)
        return [(value, _written(value, step=value if self.logarithmic else step)) for value in values]


def axis(
    label: str, values: Sequence[float], *, from_zero: bool = False, logarithmic: bool = False, room: float = 0.04
) -> Axis:
    """Around all of `values`, which are finite; with `room` above, and below where it does not start from zero."""
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
    """So that differences of two are floats too."""
    return max(-LARGEST, min(LARGEST, value))


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows more: all above zero, and the largest 30 times the smallest."""
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    raw = (high / most) - (low / most)
    if not raw > 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= raw * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)] or [low]


def _powers(low: float, high: float) -> list[float]:
    """Of ten; with 2 and 5 times them where there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, len(exponents) // 7)
    factors = (1, 2, 5) if len(exponents) <= 3 else (1,)
    values = [factor * 10.0**exponent for exponent in exponents[::every] for factor in factors]
    return [value for value in values if low <= value <= high] or [low]


def _written(value: float, *, step: float) -> str:
    """With as many digits as tell it from the next tick."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    digits = max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 0
    return f"{value:,.{min(digits, 6)}f}"
