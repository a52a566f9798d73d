"""Stretches of positions over which the loss of a long sequence is told apart. No JAX here: recipes use it."""

from __future__ import annotations

from collections.abc import Mapping

BY_POSITION = "loss_by_position"
"""Name of the table in the answer of `evaluate`."""
MOST_STRETCHES = 10
PREFIX = "loss_from_"


def stretches(length: int) -> list[tuple[int, int]]:
    """Start and end of each, every one as long as all before it, and the second half in quarters of itself.

    >>> stretches(32768)[:3], stretches(32768)[-2:]
    ([(0, 64), (64, 128), (128, 256)], [(24576, 28672), (28672, 32768)])
    """
    doubling = {length >> halvings for halvings in range(MOST_STRETCHES)}
    ends = sorted((doubling | {length * eighths // 8 for eighths in (5, 6, 7)}) - {0})
    return list(zip([0, *ends], ends, strict=False))


def name_of(start: int) -> str:
    """Returns the name of the metric of the stretch that begins there."""
    return f"{PREFIX}{start}"


def is_of_a_position(metric: str) -> bool:
    return metric.startswith(PREFIX)


def by_position(metrics: Mapping[str, float], length: int) -> dict[str, float]:
    """Positions, like "64 to 127", to the loss there: of the metrics that carry `name_of` each start."""
    pairs = [(start, end, metrics.get(name_of(start))) for start, end in stretches(length)]
    return {f"{start} to {end - 1}": loss for start, end, loss in pairs if loss is not None}
