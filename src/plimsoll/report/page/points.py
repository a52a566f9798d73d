"""Many points as few, with every spike kept: what a chart of a long run draws.

Of each stretch the lowest and the highest value are kept, at their places, so a single bad step among 100,000 is seen.
Values that are not finite are no points: they break the line, and are said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STRETCHES = 240
"""Of a line; each keeps two points."""


@dataclass(frozen=True)
class Thinned:
    pieces: tuple[tuple[tuple[float, float], ...], ...]
    """Of (x, y), finite, x ascending; a line is broken between pieces."""
    not_finite: tuple[float, ...]
    """The x of the first of them in every stretch that has values which are NaN or infinite."""
    not_finite_count: int


def thinned(xs: Sequence[float], ys: Sequence[float], *, stretches: int = STRETCHES) -> Thinned:
    """`xs` and `ys` are of one length, and `xs` ascend."""
    pieces: list[list[tuple[float, float]]] = [[]]
    bad, count = [], 0
    size = max(1, -(-len(xs) // stretches))
    size = 1 if len(xs) <= 2 * stretches else size
    for start in range(0, len(xs), size):
        stretch = range(start, min(start + size, len(xs)))
        finite = [at for at in stretch if math.isfinite(ys[at]) and math.isfinite(xs[at])]
        if len(finite) < len(stretch):
            count += len(stretch) - len(finite)
            bad += [xs[at] for at in stretch if not math.isfinite(ys[at]) and math.isfinite(xs[at])][:1]
            pieces.append([])
        if finite:
            ends = {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
            ends |= {finite[0]} if start == 0 else set()
            ends |= {finite[-1]} if stretch[-1] == len(xs) - 1 else set()
            pieces[-1] += [(xs[at], ys[at]) for at in sorted(ends)]
    return Thinned(tuple(tuple(piece) for piece in pieces if piece), tuple(bad), count)
