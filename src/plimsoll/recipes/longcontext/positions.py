"""Divides long sequences into stretches of positions, for mean losses. Imports no JAX, because recipes import this."""

from collections.abc import Mapping

BY_POSITION = "loss_by_position"
"""Name of the table of losses in the answer of `plimsoll evaluate`."""
MOST_STRETCHES = 10
PREFIX = "loss_from_"
"""Prefix of the name of a stretch's metric; the stretch's first position follows."""


def stretches(length: int) -> dict[str, tuple[int, int]]:
    """Returns start and end of each stretch by the name of its metric.

    Every stretch is as long as all before it together, but the second half of the sequence is cut in quarters.

    >>> list(stretches(32768).items())[:2], list(stretches(32768).values())[-2:]
    ([('loss_from_0', (0, 64)), ('loss_from_64', (64, 128))], [(24576, 28672), (28672, 32768)])
    """
    doubling = {length >> halvings for halvings in range(MOST_STRETCHES)}
    ends = sorted((doubling | {length * eighths // 8 for eighths in (5, 6, 7)}) - {0})
    return {f"{PREFIX}{start}": (start, end) for start, end in zip([0, *ends], ends, strict=False)}


def by_position(metrics: Mapping[str, float], length: int) -> dict[str, float]:
    """Returns the losses in `metrics`, by stretches like "64 to 127"."""
    return {
        f"{start} to {end - 1}": metrics[name] for name, (start, end) in stretches(length).items() if name in metrics
    }
