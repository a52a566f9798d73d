"""Micro-batches between and beyond the compiled ones: temporaries grow almost linearly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planner.types import Analysis


def sample(micros: list[int]) -> list[int]:
    """Returns two micro-batches to compile: a small one, and one about four times as large."""
    small = micros[min(1, len(micros) - 1)] if len(micros) > 2 else micros[0]
    large = next((n for n in micros if n >= 4 * small), micros[-1])
    return sorted({small, large})


def interpolated(micro: int, compiled: Mapping[int, Analysis]) -> Analysis:
    """Returns the analysis by linear interpolation; below the smaller compiled one, never less than in proportion."""
    sizes = sorted(compiled)
    low, high = compiled[sizes[0]], compiled[sizes[-1]]
    if len(sizes) == 1:
        share = micro / sizes[0]
        return replace(
            low,
            temp_bytes=round(low.temp_bytes * max(1.0, share)),
            host_temp_bytes=round(low.host_temp_bytes * share),
        )
    slope = (high.temp_bytes - low.temp_bytes) / (sizes[-1] - sizes[0])
    temp = max(low.temp_bytes + slope * (micro - sizes[0]), low.temp_bytes * min(1.0, micro / sizes[0]))
    hosted = high.host_temp_bytes * micro / sizes[-1]  # the inputs of blocks: so many for each example
    ends = (1 / sizes[0], 1 / sizes[-1])
    moved = _on_line(1 / micro, ends, (low.moved_bytes, high.moved_bytes))
    dots = _on_line(1 / micro, ends, (low.dots, high.dots))
    return replace(low, temp_bytes=round(temp), moved_bytes=moved, dots=dots, host_temp_bytes=round(hosted))


def _on_line(at: float, ends: tuple[float, float], values: tuple[float, float]) -> float:
    """Returns a value of the whole step, linear in 1 / micro-batch: a constant part, and one per micro-batch."""
    return values[0] + (values[1] - values[0]) * (at - ends[0]) / (ends[1] - ends[0])
