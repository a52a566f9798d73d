"""The shape of a decoder from the number of parameters it may have. Aspect ratio first, then the count.

Choosing by the count alone gives absurd depth, because narrow embeddings are cheap (92 layers of width 64 for
five million). Here width / layers stays between 32 and 128, heads are 32, 64 or 128 wide, and the inner width is
near 8/3 of the width, as in Llama (https://arxiv.org/abs/2302.13971). Of the shapes within 2 % of the target, the
nearest to the preferred ratio wins. No JAX here: recipes use it.
"""

import math
from bisect import bisect
from collections.abc import Iterator

from plimsoll.errors import RecipeError
from plimsoll.models.shape import DecoderShape
from plimsoll.units import format_count

TOLERANCE = 0.02
ASPECT_RATIOS = (32, 128)
PREFERRED_ASPECT = 64
HEAD_WIDTHS = (64, 32, 128)
INNER_RATIOS = (0.75, 1.34)
"""Lowest and highest inner width, as a share of 8/3 of the width."""
MOST_WIDTH = 16_384
VOCABULARIES = (20_000_000, 4_096), (200_000_000, 32_768), (math.inf, 50_257)
"""Sizes of a tokenizer that is trained for a model, each for models of fewer parameters than the number before it."""


def usual_vocabulary(parameters: int) -> int:
    """Returns the size of a tokenizer that is trained for a model of so many parameters."""
    return next(size for most, size in VOCABULARIES if parameters < most)


def inner_width(width: int, multiple: int = 64) -> int:
    """Returns 8/3 of the width, to the next multiple: three dots of this width cost what two of 4x would."""
    return max(multiple, round(width * 8 / 3 / multiple) * multiple)


def sized(target: int, *, vocab: int, tied: bool = True) -> DecoderShape:
    """Returns the shape nearest to the preferred proportions within 2 % of `target` parameters.

    Raises RecipeError with the smallest reachable count where the target is out of reach.
    """
    for multiple in (64, 32, 16, 8):  # the coarsest inner width that reaches the target
        near: list[tuple[float, float, DecoderShape]] = []
        for shape in _shapes(target, vocab, tied, multiple):
            error = abs(_parameters(shape.width, shape.layers, shape.inner, vocab, tied) - target) / target
            if error <= TOLERANCE:
                aspect = abs(math.log(shape.width / shape.layers / PREFERRED_ASPECT))
                inner = abs(math.log(shape.inner / (shape.width * 8 / 3)))
                strangeness = round(aspect + 2 * inner, 3)
                near.append((strangeness, error, shape))
        if near:
            return min(near, key=lambda ranked: ranked[:2])[2]
    raise RecipeError(_unreachable(target, vocab, tied))


def _unreachable(target: int, vocab: int, tied: bool) -> str:
    """Returns the refusal, with the counts nearest to the target out of all up to the first width beyond it."""
    low, high = ASPECT_RATIOS
    counts: list[int] = []
    for width in range(32, MOST_WIDTH + 1, 32):
        of_width = [
            _parameters(width, layers, inner, vocab, tied)
            for layers in range(max(1, math.ceil(width / high)), max(1, width // low) + 1)
            for inner in _inners(width, 8)
        ]
        counts += of_width
        if min(of_width) > target:
            break
    counts.sort()
    place = bisect(counts, target)
    nearest = counts[max(0, place - 1) : place + 1]
    return (
        f"--target-params {format_count(target)} is unreachable with a vocabulary of {vocab:,}: ask for"
        f" {' or '.join(f'{count:,}' for count in nearest)} parameters, the nearest there are, or use another"
        " --vocab-size"
    )


def _parameters(width: int, layers: int, inner: int, vocab: int, tied: bool) -> int:
    """Returns `DecoderShape.parameters` by arithmetic: thousands of shapes are compared."""
    layer = 4 * width * width + 3 * width * inner + 2 * width
    return vocab * width * (1 if tied else 2) + layers * layer + width


def _inners(width: int, multiple: int) -> list[int]:
    """Returns inner widths near enough to 8/3 of the width."""
    low, high = INNER_RATIOS
    return [i for i in range(multiple, 4 * width, multiple) if low <= i / (width * 8 / 3) <= high]


def _shapes(target: int, vocab: int, tied: bool, multiple: int) -> Iterator[DecoderShape]:
    low, high = ASPECT_RATIOS
    for width in range(32, MOST_WIDTH + 1, 32):
        if vocab * width > target * (1 + TOLERANCE):
            return
        heads = width // next(size for size in HEAD_WIDTHS if width % size == 0)
        near = inner_width(width, multiple)
        for inner in _inners(width, multiple) or [near]:
            without = _parameters(width, 0, inner, vocab, tied)
            exact = (target - without) / (_parameters(width, 1, inner, vocab, tied) - without)
            for layers in {math.floor(exact), math.ceil(exact)}:
                if layers >= 1 and width / high <= layers <= max(1, width / low):
                    yield DecoderShape(vocab=vocab, width=width, layers=layers, heads=heads, inner=inner, tied=tied)
