"""Estimate of a step with an untraced micro-batch, interpolated between traced ones: bytes grow almost linearly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planner.types import Analysis


def interpolated(micro: int, traces: Mapping[int, Analysis]) -> Analysis:
    """Returns the analysis of a micro-batch, interpolated between the smallest and the largest traced micro-batch."""
    smallest, largest = min(traces), max(traces)
    low, high = traces[smallest], traces[largest]
    hosted = high.host_temp_bytes * micro / largest  # inputs of blocks, in proportion to the examples
    if smallest == largest:
        return replace(low, temp_bytes=round(low.temp_bytes * micro / smallest), host_temp_bytes=round(hosted))

    # Temporaries grow along a line. Below the smallest micro-batch they shrink at most in proportion.
    slope = (high.temp_bytes - low.temp_bytes) / (largest - smallest)
    in_proportion = low.temp_bytes * min(1.0, micro / smallest)
    temporaries = max(low.temp_bytes + slope * (micro - smallest), in_proportion)

    # Work of the whole step has a constant part, and a part for each micro-batch: linear in 1 / micro.
    place = (1 / micro - 1 / smallest) / (1 / largest - 1 / smallest)
    return replace(
        low,
        temp_bytes=round(temporaries),
        host_temp_bytes=round(hosted),
        moved_bytes=low.moved_bytes + place * (high.moved_bytes - low.moved_bytes),
        dots=low.dots + place * (high.dots - low.dots),
        kernels=low.kernels + place * (high.kernels - low.kernels),
    )
