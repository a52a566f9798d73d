"""Attention block by block: a running maximum and sum make the softmax exact, and no scores are kept.

The forward pass keeps the logarithm of each query's sum. With it the backward pass computes each block's scores again,
so that temporaries grow with the length, not with its square. The sums of a block of queries are held until all its
blocks of keys are added. Query heads that share keys are multiplied together, so that keys are not repeated. Price:
seven matrix products instead of five, in small blocks. Dao 2023, https://arxiv.org/abs/2307.08691, algorithms 1 and 2,
in plain JAX for every platform and precision. `attention.py` decides when it is used.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from plimsoll.levers.precision import Form

Heads = Float[Array, "batch heads length width"]
Rows = Float[Array, "rows length width"]
"""Array of keys or values with one row per example and key-value head."""
Queries = Float[Array, "rows group length width"]
"""Queries of all rows. `group` counts the query heads that share the row's keys."""

BEGUN = (-np.inf, 0.0, 0.0)
"""State of a query before its first key: largest score, sum of weights, and weighted sum of values."""


class Seen(NamedTuple):
    """Keys that a query sees, as a hashable static argument for `custom_vjp`."""

    causal: bool
    length: int
    """Length of the sequence before padding to whole blocks."""
    window: int = 0
    """Positions that a query of causal attention sees, its own included; 0 for all."""


class Blocks(NamedTuple):
    """Settings of attention in blocks, as a hashable static argument for `custom_vjp`."""

    chunk: int
    """Number of positions in a block."""
    form: Form
    scale: float
    """Factor of the scores."""
    cap: float = 0.0
    """Scores s become cap * tanh(s / cap); 0 for no cap."""
    dtype: str = "float32"
    """Type of the arguments, and of the result and the gradients."""


def one_of(functions: Sequence[Callable[..., Any]], which: Array | None) -> Callable[..., Any]:
    """Returns a function that calls `functions[which]`, chosen at run time; the only function if `which` is None."""
    return functions[0] if which is None else partial(jax.lax.switch, which, functions)


def chunked(
    query: Heads,
    key: Heads,
    value: Heads,
    segments: Array | None,
    which: Array | None,
    *,
    blocks: Blocks,
    seen: tuple[Seen, ...],
) -> Heads:
    """Returns attention in blocks to the keys in `seen[which]`, chosen at run time; to the only item for None.

    Queries that share keys are grouped, so that keys are not repeated.
    """
    batch, heads, length, width = query.shape
    key_heads = key.shape[1]
    fill = -length % blocks.chunk

    def filled(x: Array) -> Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, fill), (0, 0)])

    queries = filled(query).reshape(batch * key_heads, heads // key_heads, length + fill, width)
    keys, values = (filled(x).reshape(-1, length + fill, width) for x in (key, value))
    if segments is not None:
        segments = jnp.pad(segments, ((0, 0), (0, fill)), mode="edge")
    mixed: Any = _flash(queries, keys, values, segments, which, blocks, seen)
    return jnp.reshape(mixed, (batch, heads, length + fill, width))[:, :, :length]


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _flash(
    query: Queries, key: Rows, value: Rows, segments: Array | None, which: Array | None, blocks: Blocks, seen: Any
) -> Queries:
    return _flash_forward(query, key, value, segments, which, blocks, seen)[0]


def _flash_forward(query: Queries, key: Rows, value: Rows, segments: Any, which: Any, blocks: Blocks, seen: Any):
    operand = blocks.form.operand
    query, key, value = operand(query.astype(jnp.float32) * blocks.scale), operand(key), operand(value)
    attend = one_of([partial(_forward, blocks=blocks, seen=each) for each in seen], which)
    result, log_total = attend(query, key, value, segments)
    return result, (query, key, value, segments, which, operand(result), log_total)


def _flash_backward(blocks: Blocks, seen: Any, kept: Any, towards: Queries):
    *arrays, which, result, log_total = kept
    weighed = jnp.sum(towards.astype(jnp.float32) * result.astype(jnp.float32), axis=-1)
    pull = one_of([partial(_backward, blocks=blocks, seen=each) for each in seen], which)
    return *pull(*arrays, blocks.form.operand(towards), log_total, weighed), None, None


_flash.defvjp(_flash_forward, _flash_backward)


def _forward(
    query: Queries, key: Rows, value: Rows, segments: Array | None, *, blocks: Blocks, seen: Seen
) -> tuple[Queries, Array]:
    """Returns the result, and for each query the logarithm of the sum of its exponentiated scores."""
    form, chunk = blocks.form, blocks.chunk
    rows, group, length, width = query.shape

    def add_block(of_queries: Any, pair: Any):
        highest, total, mixed = of_queries
        i, j, _ = pair
        queries = _block(query, i, chunk=chunk)
        scores, _ = _scores(queries, _block(key, j, chunk=chunk), segments, (i, j), blocks, seen)
        now = jnp.maximum(highest, jnp.max(scores, axis=-1))
        weights, before = jnp.exp(scores - now[..., None]), jnp.exp(highest - now)
        total = total * before + jnp.sum(weights, axis=-1)
        more = form.contract(form.operand(weights), _block(value, j, chunk=chunk), b_axis=-2)
        return now, total, mixed * before[..., None] + more

    def step(sums: Any, pair: Any):
        result, log_totals, of_queries = sums
        i, _, first = pair
        begun = tuple(jnp.where(first, begun, x) for begun, x in zip(BEGUN, of_queries, strict=True))
        highest, total, mixed = _where_shared(add_block, begun, segments, pair, chunk)
        result = _put(result, (mixed / total[..., None]).astype(result.dtype), i, chunk=chunk)
        log_totals = _put(log_totals, (highest + jnp.log(total))[..., None], i, chunk=chunk)
        return (result, log_totals, (highest, total, mixed)), None

    zeros = jnp.zeros((rows, group * chunk))
    start = (
        jnp.zeros(query.shape, blocks.dtype),
        jnp.zeros((rows, group, length, 1)),
        (zeros, zeros, jnp.zeros((rows, group * chunk, width))),
    )
    query, segments, pairs = _tied(query, segments, blocks, seen)
    (result, log_totals, _), _ = jax.lax.scan(step, start, pairs)
    return result, log_totals[..., 0]


def _backward(
    query: Queries,
    key: Rows,
    value: Rows,
    segments: Array | None,
    towards: Queries,
    log_total: Array,
    weighed: Array,
    *,
    blocks: Blocks,
    seen: Seen,
) -> tuple[Queries, Rows, Rows]:
    """Returns the gradients of query, key and value."""
    form, chunk = blocks.form, blocks.chunk
    rows, group, _, width = query.shape
    log_total, weighed = log_total[..., None], weighed[..., None]
    at = partial(_block, chunk=chunk)

    def of_block(_: Any, pair: Any):
        i, j, _ = pair
        scores, slope = _scores(at(query, i), at(key, j), segments, (i, j), blocks, seen)
        weights = jnp.exp(scores - at(log_total, i))
        to_weights = form.contract(at(towards, i), at(value, j), b_axis=-1)
        to_scores = form.operand(weights * (to_weights - at(weighed, i)) * slope)
        more_value = form.contract(form.transposed(form.operand(weights)), at(towards, i), b_axis=-2)
        more_query = form.contract(to_scores, at(key, j), b_axis=-2)
        more_key = form.contract(form.transposed(to_scores), at(query, i), b_axis=-2)
        return more_query, more_key, more_value

    def step(sums: Any, pair: Any):
        to_queries, to_query, to_key, to_value = sums
        i, j, first = pair
        more_query, more_key, more_value = _where_shared(of_block, nothing, segments, pair, chunk)
        to_query = jnp.where(first, 0.0, to_query) + more_query
        to_queries = _put(to_queries, (to_query * blocks.scale).astype(to_queries.dtype), i, chunk=chunk)
        return (to_queries, to_query, _add(to_key, more_key, j), _add(to_value, more_value, j)), None

    to_block = jnp.zeros((rows, chunk, width))
    nothing = jnp.zeros((rows, group * chunk, width)), to_block, to_block
    start = (
        jnp.zeros(query.shape, blocks.dtype),
        jnp.zeros((rows, group * chunk, width)),
        jnp.zeros(key.shape),
        jnp.zeros(value.shape),
    )
    query, segments, pairs = _tied(query, segments, blocks, seen)
    (to_query, _, to_key, to_value), _ = jax.lax.scan(step, start, pairs)
    return to_query, to_key.astype(blocks.dtype), to_value.astype(blocks.dtype)


def _tied(query: Queries, segments: Array | None, blocks: Blocks, seen: Seen) -> Any:
    """Returns query, segments, and pairs of a block of queries and a block of keys, behind an optimization barrier.

    Without the barrier the pairs are constants. JAX would then compute the masks of all pairs, a boolean for each
    score, before a loop over layers, because masks depend only on pairs and documents.
    """
    pairs = _pairs(query.shape[2] // blocks.chunk, blocks.chunk, seen, outwards=segments is not None)
    return jax.lax.optimization_barrier((query, segments, pairs))


def _where_shared(add_block: Callable[[Any, Any], Any], otherwise: Any, segments: Array | None, pair: Any, chunk: int):
    """Returns `add_block(otherwise, pair)`, or `otherwise` if the two blocks share no document.

    Only arrays of one block are arguments of the conditional: a GPU's compiler copies arguments in every round.
    """
    if segments is None:
        return add_block(otherwise, pair)
    i, j, _ = pair
    queries = _block(segments[..., None], i, chunk=chunk)[:, :, 0]
    keys = _block(segments[..., None], j, chunk=chunk)[:, :, 0]
    may_share = jnp.any(_ranges_meet(queries, keys))
    return jax.lax.cond(may_share, add_block, lambda otherwise, _: otherwise, otherwise, pair)


def _ranges_meet(queries: Int[Array, "batch chunk"], keys: Int[Array, "batch chunk"]) -> Bool[Array, " batch"]:
    """Returns, for each sequence, True if the ranges of two blocks' document numbers overlap.

    Blocks with a common document always have overlapping ranges, even if numbers do not increase: padding at the end
    of a sequence has number 0, after documents 1, 2, ... So the pair of a block with itself, which comes first for
    its queries, is never skipped.
    """
    not_below = jnp.max(keys, axis=1) >= jnp.min(queries, axis=1)
    not_above = jnp.min(keys, axis=1) <= jnp.max(queries, axis=1)
    return not_below & not_above


def _pairs(blocks: int, chunk: int, seen: Seen, *, outwards: bool = False) -> tuple[Array, Array, Array]:
    """Returns the indices of each pair of query and key block, and whether it is the first pair of its query block.

    Causal attention has no pairs above the diagonal or before the window. A query must see a key in its first pair.
    With a window or documents (`outwards`) it may see none in the farthest block, so the diagonal block comes first.
    """
    if seen.window or outwards:
        reach = seen.window or blocks * chunk
        firsts = [max(0, (i * chunk - reach + 1) // chunk) for i in range(blocks)]
        i, j = np.array([(i, j) for i in range(blocks) for j in range(i, firsts[i] - 1, -1)]).T
    else:
        i, j = np.tril_indices(blocks) if seen.causal else np.indices((blocks, blocks)).reshape(2, -1)
    first = np.diff(i, prepend=-1) > 0
    return jnp.asarray(i, jnp.int32), jnp.asarray(j, jnp.int32), jnp.asarray(first)


def _scores(
    query: Float[Array, "rows queries width"],
    key: Rows,
    segments: Int[Array, "batch length"] | None,
    pair: tuple[Array, Array],
    blocks: Blocks,
    seen: Seen,
) -> tuple[Float[Array, "rows queries keys"], Any]:
    """Returns the scores, -inf for unseen keys, and each score's derivative with respect to its product of q and k.

    The axis `queries` has the block's queries of each head that shares the keys, one head after another.
    """
    (i, j), chunk = pair, key.shape[1]
    places = jnp.arange(chunk, dtype=jnp.int32)
    queries, keys = i * chunk + places, j * chunk + places
    if seen.causal:  # no query sees later keys, so none sees the padding
        visible = keys[None, :] <= queries[:, None]
        if seen.window:
            visible = visible & (keys[None, :] > queries[:, None] - seen.window)
    else:
        visible = jnp.broadcast_to(keys[None, :] < seen.length, (chunk, chunk))
    if segments is not None:
        of_query, of_key = (_block(segments[..., None], each, chunk=chunk) for each in (i, j))
        visible = visible & (of_query == of_key.swapaxes(1, 2))
        visible = jnp.repeat(visible, query.shape[0] // segments.shape[0], axis=0)[:, None]
    products = blocks.form.contract(query, key, b_axis=-1)
    turned, slope = products, 1.0
    if blocks.cap:
        tanh = jnp.tanh(products / blocks.cap)
        turned, slope = blocks.cap * tanh, 1 - tanh * tanh
    by_head = turned.reshape(query.shape[0], -1, chunk, chunk)
    return jnp.where(visible, by_head, -jnp.inf).reshape(products.shape), slope


def _block(x: Array, i: Array, *, chunk: int) -> Array:
    """Returns block `i` of the last axis but one, with heads merged: (rows, heads x chunk, columns)."""
    cut = jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=x.ndim - 2)
    return cut.reshape(x.shape[0], -1, x.shape[-1])


def _put(x: Array, block: Array, i: Array, *, chunk: int) -> Array:
    shaped = block.reshape(*x.shape[:-2], chunk, x.shape[-1])
    return jax.lax.dynamic_update_slice_in_dim(x, shaped, i * chunk, axis=x.ndim - 2)


def _add(x: Array, block: Array, i: Array) -> Array:
    chunk = block.shape[1]
    return _put(x, _block(x, i, chunk=chunk) + block, i, chunk=chunk)
