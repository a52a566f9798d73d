"""Attention by cuDNN, forward and backward, in pieces that limit the workspace (cudnn_workspace.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from plimsoll.levers.cudnn_calls import Lengths, Logarithms, Positions, forward, pull
from plimsoll.levers.cudnn_workspace import Call, pieces

NO_WEIGHT = 1e6
"""Log-sum-exp of a query that makes all its weights, exp(score - log-sum-exp), zero."""


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cudnn_attention(
    query: Positions, key: Positions, value: Positions, lengths: Lengths | None, call: Call
) -> Positions:
    """Returns softmax(scale q k') v.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        lengths: int32 number of positions that count, for each example; None if all count. Later positions of the
            result are undefined.
        call: Settings of the call.
    """
    return forward(query, key, value, lengths, call, training=False)[0]


def _training(query: Positions, key: Positions, value: Positions, lengths: Lengths | None, call: Call):
    mixed, sums = forward(query, key, value, lengths, call, training=True)
    return mixed, (query, key, value, lengths, mixed, sums)


def _backward(call: Call, kept: Any, towards: Positions):
    query, key, value, lengths, mixed, sums = kept
    of_examples = [query, key, value, mixed, towards, sums]
    further = []
    if lengths is not None:
        of_examples[3:], further = _without_the_rest(mixed, towards, sums, lengths), [lengths]
    block, examples = pieces(query.shape, key.shape, call)
    one = partial(_in_blocks, block, call) if block else partial(pull, call)
    gradients = _by_examples(one, [*of_examples, *further], examples)
    return *gradients, None


cudnn_attention.defvjp(_training, cast(Any, _backward))


def _by_examples(one: Callable[..., tuple[Array, ...]], arrays: list[Array], count: int) -> tuple[Array, ...]:
    """Applies `one` to `count` examples at a time, without a compiled loop, which would copy all examples."""
    batch = arrays[0].shape[0]
    parts = [one(*(x[start : start + count] for x in arrays)) for start in range(0, batch, count)]
    return parts[0] if count == batch else tuple(jnp.concatenate(each) for each in zip(*parts, strict=True))


def _without_the_rest(*arrays: Any) -> list[Array]:
    """Masks positions beyond the lengths, which a kernel leaves undefined, so that they have no weight.

    The arguments are the result of attention, its gradient, log-sum-exps and lengths. The first three are returned.
    """
    mixed, towards, sums, lengths = arrays
    counts = jnp.arange(mixed.shape[1]) < lengths[:, None]
    of_heads = counts[:, :, None, None]
    return [*(jnp.where(of_heads, x, 0) for x in (mixed, towards)), jnp.where(counts[:, None], sums, NO_WEIGHT)]


def _in_blocks(
    block: int,
    call: Call,
    query: Positions,
    key: Positions,
    value: Positions,
    mixed: Positions,
    towards: Positions,
    sums: Logarithms,
    lengths: Lengths | None = None,
) -> tuple[Array, ...]:
    """Returns the gradients of query, key and value, computed for `block` queries and `block` keys at a time.

    A block's weights need only its scores and the logarithm of each query's complete sum; their gradient needs only the
    query's complete result. So the gradients of blocks add up (FlashAttention, arXiv:2205.14135, algorithm 4). Sums are
    float32. Padding of the last block has no weight. With `lengths`, blocks beyond the longest example are left out.
    """
    length = query.shape[1]
    number = -(-length // block)

    def of_pair(call: Call, row: Array, column: Array) -> tuple[Array, ...]:
        of_rows, of_columns = row * block, column * block
        q, of_result, flowing = (_filled(x, of_rows, block) for x in (query, mixed, towards))
        k, v = (_filled(x, of_columns, block) for x in (key, value))
        return pull(call, q, k, v, of_result, flowing, _filled(sums, of_rows, block, axis=2, by=NO_WEIGHT))

    def on_the_diagonal(at: Array) -> tuple[Array, ...]:
        of_query, *of_others = of_pair(call, at, at)
        return of_query, *(x.astype(jnp.float32) for x in of_others)

    def add(carry: Any, pair: tuple[Array, Array, Array]) -> tuple[Any, None]:
        """Adds the gradients of a pair of blocks to the carry: float32 sums for one query block, and the totals."""
        of_row, totals = carry
        row, column, first = pair
        found = [x.astype(jnp.float32) for x in of_pair(call._replace(causal=False), row, column)]
        places = row * block, column * block, column * block
        earlier = [_cut(total, at, block).astype(jnp.float32) for total, at in zip(totals, places, strict=True)]
        of_row = jnp.where(first, earlier[0], of_row) + found[0]
        new = of_row, earlier[1] + found[1], earlier[2] + found[2]
        put = jax.lax.dynamic_update_slice_in_dim
        parts = zip(totals, new, places, strict=True)
        return (of_row, tuple(put(total, x.astype(total.dtype), at, axis=1) for total, x, at in parts)), None

    diagonal = jax.lax.map(on_the_diagonal, jnp.arange(number))
    totals = tuple(jnp.moveaxis(x, 0, 1).reshape(x.shape[1], number * block, *x.shape[3:]) for x in diagonal)
    rows, columns = np.divmod(np.arange(number**2), number)
    others = rows > columns if call.causal else rows != columns
    rows, columns = rows[others], columns[others]
    pairs = jnp.asarray(rows), jnp.asarray(columns), jnp.asarray(np.diff(rows, prepend=-1) != 0)
    start = jnp.zeros((query.shape[0], block, *query.shape[2:]), jnp.float32)
    if lengths is None:
        (_, totals), _ = jax.lax.scan(add, (start, totals), pairs)
    else:  # pairs are sorted by row, so the first ones are those of the rows that count
        counted = -(-jnp.max(lengths) // block)
        one = lambda at, carry: add(carry, (pairs[0][at], pairs[1][at], pairs[2][at]))[0]  # noqa: E731
        _, totals = jax.lax.fori_loop(0, counted * (counted - 1) // 2, one, (start, totals))
    return tuple(x[:, :length].astype(like.dtype) for x, like in zip(totals, (query, key, value), strict=True))


def _cut(x: Array, start: Array, size: int, *, axis: int = 1) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis=axis)


def _filled(x: Array, start: Array, size: int, *, axis: int = 1, by: float = 0.0) -> Array:
    """Returns `size` positions from `start` on, filled with `by` beyond the end. Padding all of `x` would copy it."""
    length = x.shape[axis]
    if length % size == 0:
        return _cut(x, start, size, axis=axis)
    first = jnp.minimum(start, length - size)
    part = jnp.roll(_cut(x, first, size, axis=axis), first - start, axis=axis)
    sides = [size if at == axis else 1 for at in range(x.ndim)]
    return jnp.where((jnp.arange(size) < length - start).reshape(sides), part, jnp.asarray(by, x.dtype))
