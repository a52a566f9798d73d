"""Workspace of cuDNN's attention, and pieces of a backward pass that limit it. Imports no JAX.

A backward pass that adds in a fixed order keeps the gradients of all scores, 2 bytes x heads x length^2 an example.
Without a card no compiler knows these bytes, so the call states them (cudnn_calls.py). A backward pass that needs more
than SCORES_LIMIT is computed for some examples at a time, or in blocks of positions (attention_cudnn.py).
"""

from __future__ import annotations

from typing import NamedTuple

from plimsoll.units import MIB

SCORES_LIMIT = 256 * MIB
"""Most bytes of gradients of scores in a backward pass that adds in a fixed order; a larger pass is split into pieces.
Blocks of 2,048 positions with 32 heads have as many. With larger blocks cuDNN 9.25 or later is slower on Hopper."""
WORTH_A_COPY = 64 * MIB
"""Bytes of one example's gradients of scores up to which one call takes the whole batch. Beside activations these bytes
are few, and slicing the batch would cost 5 % of a step of 1,024 positions."""
MOST_CALLS = 16
"""Largest number of kernel calls for one batch. More calls take long to compile, and leave a card idle."""
TIMES_QUERIES = 2
"""A block is larger only while the gradients of its scores take at most this many times the bytes of all queries."""
TILE = 64
"""A kernel pads the number of positions to a multiple of this."""
SMALLEST_BLOCK = 512
"""Fewest positions of a block: smaller blocks leave most of a card idle."""


class Call(NamedTuple):
    """Settings of a call of cuDNN's attention besides its arrays, as a hashable static argument."""

    scale: float
    """Factor of the scores."""
    causal: bool = True
    window: int = 0
    """Positions that a query sees, its own included; 0 for all."""
    deterministic: bool = True
    """Whether the backward pass adds in a fixed order. Must equal the option with which the step is compiled, else no
    kernel is found."""


def pieces(queries: tuple[int, ...], keys: tuple[int, ...], call: Call) -> tuple[int, int]:
    """Returns the pieces of a backward pass that stay within SCORES_LIMIT.

    Args:
        queries: Shape of the queries.
        keys: Shape of the keys.
        call: Settings of the call.

    Returns:
        The number of positions per block (0 for whole sequences), and the number of examples per call.
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
    fits = block < length and (call.causal or length % block == 0)  # else padded keys would have weights
    return (block if fits else 0), examples


def window_is_dear(queries: tuple[int, ...], call: Call) -> bool:
    """Returns True if a windowed backward pass exceeds SCORES_LIMIT. It cannot be split, since a window crosses blocks.

    Args:
        queries: Shape of the queries.
        call: Settings of the call.
    """
    one = (1, *queries[1:])
    return bool(call.window) and call.deterministic and _scores_bytes(one, one) > SCORES_LIMIT


def workspace_bytes(queries: tuple[int, ...], keys: tuple[int, ...], call: Call) -> int:
    """Returns the bytes of a backward kernel besides its arguments and results.

    A kernel that adds in a fixed order keeps the gradients of all scores in 16 bits; another one keeps sums of the
    queries' gradients in float32. These are the bytes that cuDNN 9.19 requested on an H200, with as many key heads
    as query heads (notes, "On an H200"). On a card XLA replaces them with what its own cuDNN requests.

    Args:
        queries: Shape of the queries.
        keys: Shape of the keys. Only the length is read.
        call: Settings of the call.
    """
    batch, length, heads, width = queries
    largest = _scores_bytes(queries, keys) if call.deterministic else 4 * batch * heads * length * width
    return largest + 4 * batch * heads * length


def _scores_bytes(queries: tuple[int, ...], keys: tuple[int, ...]) -> int:
    """Returns the bytes of the gradients of all scores, in 16 bits and padded to whole tiles."""
    batch, length, heads, *_ = queries
    rows, columns = (-(-count // TILE) * TILE for count in (length, keys[1]))
    return 2 * batch * heads * rows * columns
