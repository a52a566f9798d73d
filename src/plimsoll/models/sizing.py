"""Finds the shape of a decoder for a number of parameters.

The number alone would allow absurd depth, because narrow embeddings have few parameters (92 layers of width 64 for five
million). So width / layers stays between 32 and 128, heads have 32, 64 or 128 columns, and the feed-forward width is
near 8/3 of the width, as in Llama (https://arxiv.org/abs/2302.13971). Among shapes within 2 % of the number, the one
nearest to the preferred ratios wins. Imports no JAX, because recipes import this file.
"""

import math
from bisect import bisect
from collections.abc import Iterator
from typing import NamedTuple

from plimsoll.errors import RecipeError
from plimsoll.models.shape import DecoderShape
from plimsoll.units import format_count

TOLERANCE = 0.02
ASPECT_RATIOS = (32, 128)
PREFERRED_ASPECT = 64
HEAD_WIDTHS = (64, 32, 128)
INNER_RATIOS = (0.75, 1.34)
"""Lowest and highest feed-forward width, as a multiple of 8/3 of the width."""
MOST_WIDTH = 16_384
VOCABULARIES = (20_000_000, 4_096), (200_000_000, 32_768), (math.inf, 50_257)
"""Pairs of a number of parameters and the default vocabulary size of models with fewer parameters."""


def usual_vocabulary(parameters: int) -> int:
    """Returns the default vocabulary size for a model with this number of parameters."""
    return next(size for most, size in VOCABULARIES if parameters < most)


def usual_heads(width: int) -> int:
    """Returns the number of heads: of 64 columns, else 32, else 128; 1 if none of these divides the width."""
    return width // next((size for size in HEAD_WIDTHS if width % size == 0), width)


def inner_width(width: int, multiple: int = 64, *, thirds: int = 8) -> int:
    """Returns a feed-forward width: width * `thirds` / 3, rounded to a multiple of `multiple`.

    With 8, the three products of a gated feed-forward part cost as much as the two of a plain one of 4 x the width.
    """
    return max(multiple, round(width * thirds / 3 / multiple) * multiple)


class Candidate(NamedTuple):
    """Sizes of a possible shape, and its number of parameters."""

    width: int
    layers: int
    inner: int
    parameters: int

    @property
    def strangeness(self) -> float:
        """Distance from the preferred width / layers (64) and inner / width (8/3); 0 if both are met."""
        aspect = abs(math.log(self.width / self.layers / PREFERRED_ASPECT))
        inner = abs(math.log(self.inner / (self.width * 8 / 3)))
        return round(aspect + 2 * inner, 3)


def sized(target: int, *, vocab: int, tied: bool = True) -> DecoderShape:
    """Returns the shape nearest to the preferred proportions within 2 % of `target` parameters.

    Raises RecipeError with the nearest possible counts if there is no such shape.
    """
    candidates: list[Candidate] = []
    for multiple in (64, 32, 16, 8):  # prefer a large multiple for the inner width
        candidates = list(_candidates(target, vocab * (1 if tied else 2), multiple))
        near = [shape for shape in candidates if abs(shape.parameters - target) <= TOLERANCE * target]
        if near:
            best = min(near, key=lambda shape: (shape.strangeness, abs(shape.parameters - target)))
            return DecoderShape(
                vocab=vocab,
                width=best.width,
                layers=best.layers,
                heads=usual_heads(best.width),
                inner=best.inner,
                tied=tied,
            )

    counts = sorted(shape.parameters for shape in candidates)
    place = bisect(counts, target)
    nearest = counts[max(0, place - 1) : place + 1]
    raise RecipeError(
        f"--target-params {format_count(target)} is unreachable with a vocabulary of {vocab:,}: ask for"
        f" {' or '.join(f'{count:,}' for count in nearest)} parameters, the nearest there are, or use another"
        " --vocab-size"
    )


def _candidates(target: int, rows: int, multiple: int) -> Iterator[Candidate]:
    """Yields, for each width, shapes just below and above `target`. Ends after the first width that is too large.

    Args:
        target: Number of parameters.
        rows: Rows of the embedding, plus those of an untied output layer.
        multiple: Number of which the feed-forward width is a multiple.
    """
    deepest, flattest = ASPECT_RATIOS
    low, high = INNER_RATIOS
    for width in range(32, MOST_WIDTH + 1, 32):
        usual = width * 8 / 3
        inners = [inner for inner in range(multiple, 4 * width, multiple) if low <= inner / usual <= high]
        least, most = math.ceil(width / flattest), width // deepest
        without = rows * width + width
        shapes: list[Candidate] = []
        for inner in inners or [inner_width(width, multiple)]:
            layer = 4 * width * width + 3 * width * inner + 2 * width
            exact = math.floor((target - without) / layer)
            for layers in {min(max(number, least), most) for number in (exact, exact + 1)}:
                shapes.append(Candidate(width, layers, inner, without + layers * layer))
        yield from shapes
        if min(shape.parameters for shape in shapes) > (1 + TOLERANCE) * target:
            return
