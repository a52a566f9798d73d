"""Estimate of a step at a micro-batch size that was not traced, by interpolation between two traced sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planner.types import Analysis


def interpolated(micro: int, traces: Mapping[int, Analysis]) -> Analysis:
    """Returns the analysis for micro-batch size `micro`, interpolated between the smallest and largest traced size."""
    smallest, largest = min(traces), max(traces)
    low, high = traces[smallest], traces[largest]
    hosted = high.host_temp_bytes * micro / largest  # inputs of blocks, in proportion to the examples
    if smallest == largest:
        return replace(low, temp_bytes=round(low.temp_bytes * micro / smallest), host_temp_bytes=round(hosted))

    # Temporary memory grows almost linearly with the size. Below the smallest size it shrinks at most in proportion.
    slope = (high.temp_bytes - low.temp_bytes) / (largest - smallest)
    in_proportion = low.temp_bytes * min(1.0, micro / smallest)
    temporaries = max(low.temp_bytes + slope * (micro - smallest), in_proportion)

    # A step's work is a constant plus a part per micro-batch. The number of micro-batches is proportional to 1 / micro.
    place = (1 / micro - 1 / smallest) / (1 / largest - 1 / smallest)
    return replace(
        low,
        temp_bytes=round(temporaries),
        host_temp_bytes=round(hosted),
        moved_bytes=low.moved_bytes + place * (high.moved_bytes - low.moved_bytes),
        dots=low.dots + place * (high.dots - low.dots),
        kernels=low.kernels + place * (high.kernels - low.kernels),
    )
