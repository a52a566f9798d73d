"""Workspace of cuDNN's attention, and the pieces in which a backward pass stays within one. Without JAX.

A backward pass that adds in one order keeps the gradients of all scores, 2 bytes x heads x length^2 of an example; no
compiler knows of it without a card. So its bytes are written into the call (cudnn_calls.py), and what would need more
than WORKSPACE_LIMIT goes through some examples at a time, or in blocks of positions (attention_cudnn.py).
"""

from __future__ import annotations

from typing import NamedTuple

from plimsoll.units import MIB

WORKSPACE_LIMIT = 288 * MIB
"""Of a backward pass that adds in one order: what needs more goes through in pieces. Blocks of 2,048 positions of 32
heads need 256 MiB, and 1/4 of one."""
WORTH_A_COPY = 64 * MIB
"""Workspace of an example up to which all examples go at once: beside what else they take it is small, and to cut their
arrays would cost 5 % of a step of 1,024 positions."""
MOST_CALLS = 16
"""For some examples each: more would be compiled for long, and leave a card idle."""
TIMES_QUERIES = 2
"""Most bytes of a block's workspace over those of all queries, beside which it is not the most that there is then."""
SMALLEST_BLOCK = 512
"""Positions: a kernel of fewer leaves most of a card idle."""


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
    """Returns how a backward pass goes through within WORKSPACE_LIMIT: positions of a block, and examples at a time.

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
    of_an_example = workspace_bytes((1, length, heads, 0), keys, call)
    fitting = max(1, WORKSPACE_LIMIT // of_an_example) if of_an_example > WORTH_A_COPY else batch
    calls = min(MOST_CALLS, -(-batch // fitting))
    examples = -(-batch // calls)
    if of_an_example <= WORKSPACE_LIMIT or call.window:  # see `window_is_dear`
        return 0, examples
    block, most = SMALLEST_BLOCK, min(WORKSPACE_LIMIT, TIMES_QUERIES * 2 * examples * length * heads * width)
    while workspace_bytes((examples, 2 * block, heads, 0), (examples, 2 * block), call) <= most:
        block *= 2
    return (block if block < length else 0), examples


def window_is_dear(queries: tuple[int, ...], call: Call) -> bool:
    """Returns whether a windowed backward pass takes more than the limit, which no piece of it would: no kernel knows a
    window between two blocks.

    Args:
        queries: Shape of the queries.
        call: Settings.
    """
    one = (1, *queries[1:])
    return bool(call.window) and call.deterministic and workspace_bytes(one, one, call) > WORKSPACE_LIMIT


def workspace_bytes(queries: tuple[int, ...], keys: tuple[int, ...], call: Call) -> int:
    """Returns the bytes of a backward kernel beside its arguments and results.

    Adding in one order it keeps the gradients of all scores, in 16 bits; else sums of the queries' gradients in
    float32. As seen on an H200 with cuDNN 9.19 (docs/log.md, "On an H200"); its own code says the same of other cards.

    Args:
        queries: Shape of the queries.
        keys: Shape of the keys, of which the length counts.
        call: Settings.
    """
    batch, length, heads, width = queries
    up = lambda count: -(-count // 64) * 64  # noqa: E731
    largest = 2 * up(length) * up(keys[1]) if call.deterministic else 4 * length * width
    return batch * heads * (largest + 4 * length)
