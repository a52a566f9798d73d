"""A step with a micro-batch that nobody looked at, from those that were: temporaries grow almost linearly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planner.types import Analysis


def interpolated(micro: int, compiled: Mapping[int, Analysis]) -> Analysis:
    """Returns the analysis by linear interpolation; below the smaller compiled one, never less than in proportion."""
    smallest, largest = min(compiled), max(compiled)
    low, high = compiled[smallest], compiled[largest]
    if smallest == largest:
        share = micro / smallest
        return replace(
            low,
            temp_bytes=round(low.temp_bytes * max(1.0, share)),
            host_temp_bytes=round(low.host_temp_bytes * share),
            kernels=low.kernels / share,
            sent_bytes=low.sent_bytes if share == 1 else 0.0,
            hidden_share=low.hidden_share if share == 1 else 0.0,
        )
    slope = (high.temp_bytes - low.temp_bytes) / (largest - smallest)
    temp = max(low.temp_bytes + slope * (micro - smallest), low.temp_bytes * min(1.0, micro / smallest))
    hosted = high.host_temp_bytes * micro / largest  # the inputs of blocks: so many for each example
    # Of the whole step, linear in 1 / micro-batch: a constant part, and one per micro-batch.
    offset, width = 1 / micro - 1 / smallest, 1 / largest - 1 / smallest
    moved, dots, kernels, seconds, sent, hidden = (
        getattr(low, name) + (getattr(high, name) - getattr(low, name)) * offset / width
        for name in ("moved_bytes", "dots", "kernels", "kernel_seconds", "sent_bytes", "hidden_share")
    )
    return replace(
        low,
        temp_bytes=round(temp),
        moved_bytes=moved,
        dots=dots,
        host_temp_bytes=round(hosted),
        kernels=kernels,
        kernel_seconds=seconds,
        sent_bytes=max(0.0, sent),
        hidden_share=min(1.0, max(0.0, hidden)),
    )
