"""Workspace of cuDNN's attention, and the pieces in which a backward pass stays within one. Without JAX.

A backward pass that adds in one order keeps the gradients of all scores, 2 bytes x heads x length^2 of an example; no
compiler knows of it without a card. So its bytes are written into the call (cudnn_calls.py), and what would need more
than SCORES_LIMIT goes through some examples at a time, or in blocks of positions (attention_cudnn.py).
"""

from __future__ import annotations

from typing import NamedTuple

from plimsoll.units import MIB

SCORES_LIMIT = 256 * MIB
"""Most bytes of the gradients of scores in a backward pass that adds in one order: more go through in pieces. Blocks of
2,048 positions of 32 heads have as many; from 9.25 on cuDNN takes a slower way on Hopper beyond them."""
WORTH_A_COPY = 64 * MIB
"""Bytes of one example's gradients of scores, up to which all examples go at once: where nothing is recomputed
they are few beside what else it takes, and to cut their arrays would cost 5 % of a step of 1,024 positions."""
MOST_CALLS = 16
"""Most calls of a kernel, for some examples each: more would be compiled for long, and leave a card idle."""
TIMES_QUERIES = 2
"""Most bytes of the gradients of a block's scores, over those of all queries."""
TILE = 64
"""Positions that a kernel fills up to a whole number of."""
SMALLEST_BLOCK = 512
"""Fewest positions of a block: a kernel of fewer leaves most of a card idle."""


class Call(NamedTuple):
    """Settings of a call that do not follow from its arrays: hashable, so that they can be static."""

    scale: float
    """Factor of the scores."""
    causal: bool = True
    window: int = 0
    """Positions that a query sees, its own included; 0 for all."""
    deterministic: bool = True
    """Whether the backward pass adds in one order; as the step is compiled, or no kernel is found."""


def pieces(queries: tuple[int, ...], keys: tuple[int, ...], call: Call) -> tuple[int, int]:
    """Returns how a backward pass goes through within SCORES_LIMIT: positions of a block, and examples at a time.

    Args:
        queries: Shape of the queries.
        keys: Shape of the keys.
        call: Settings.

    Returns:
        Block, 0 for whole examples; and a number of examples.
    """
    batch, length, heads, width = queries
    if not call.deterministic:
        return 0, batch
    of_an_example = _scores_bytes((1, length, heads), keys)
    fitting = max(1, SCORES_LIMIT // of_an_example) if of_an_example > WORTH_A_COPY else batch
    calls = min(MOST_CALLS, -(-batch // fitting))
    examples = -(-batch // calls)
    if of_an_example <= SCORES_LIMIT or call.window:  # see `window_is_dear`
        return 0, examples
    block, most = SMALLEST_BLOCK, min(SCORES_LIMIT, TIMES_QUERIES * 2 * examples * length * heads * width)
    while _scores_bytes((examples, 2 * block, heads), (examples, 2 * block)) <= most:
        block *= 2
    fits = block < length and (call.causal or length % block == 0)  # else keys that fill up a block would have weights
    return (block if fits else 0), examples


def window_is_dear(queries: tuple[int, ...], call: Call) -> bool:
    """Returns whether a windowed backward pass takes more than the limit, which no piece of it would: no kernel knows a
    window between two blocks.

    Args:
        queries: Shape of the queries.
        call: Settings.
    """
    one = (1, *queries[1:])
    return bool(call.window) and call.deterministic and _scores_bytes(one, one) > SCORES_LIMIT


def workspace_bytes(queries: tuple[int, ...], keys: tuple[int, ...], call: Call) -> int:
    """Returns the bytes of a backward kernel beside its arguments and results.

    Adding in one order it keeps the gradients of all scores, in 16 bits; else sums of the queries' gradients in
    float32. As an H200 asked for with cuDNN 9.19, of as many heads of keys as of queries (notes, "On an H200");
    on a card XLA puts what its cuDNN asks for in its place.

    Args:
        queries: Shape of the queries.
        keys: Shape of the keys, of which the length counts.
        call: Settings.
    """
    batch, length, heads, width = queries
    largest = _scores_bytes(queries, keys) if call.deterministic else 4 * batch * heads * length * width
    return largest + 4 * batch * heads * length


def _scores_bytes(queries: tuple[int, ...], keys: tuple[int, ...]) -> int:
    """Returns the bytes of the gradients of all scores, in 16 bits and whole tiles."""
    batch, length, heads, *_ = queries
    rows, columns = (-(-count // TILE) * TILE for count in (length, keys[1]))
    return 2 * batch * heads * rows * columns
