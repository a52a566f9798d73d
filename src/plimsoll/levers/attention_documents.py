"""Attention within documents, computed for one document after another by a kernel that takes one length per sequence.

cuDNN's kernel, as cudnn_calls.py calls it, cannot separate documents. Here a loop cuts one document after another out
of the batch, padded to the next of a few sizes (`sizes`), calls the kernel with the document's length, and writes the
document's result. So no scores between documents are computed, none are in memory, and the number of documents may be
known only at run time. The backward pass does the same, and computes the kernel's forward pass again.

Price: a document is copied in and out, and starts its own kernels, some tens of microseconds. Leave it off if documents
have a few hundred tokens in short sequences. Padding costs little, since a kernel skips blocks beyond the length. Call
it on one device's examples: a batch split over devices would be gathered.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

Heads = Float[Array, "batch heads length width"]
Rows = Float[Array, "rows heads width"]
"""All positions of a batch, one sequence after another."""
Attend = Callable[..., Array]
"""Function from query, key and value of (1, length, heads, width), and an int32 (1,) length, to the result."""

SMALLEST, FACTOR = 512, 4


def sizes(length: int) -> list[int]:
    """Returns the lengths to which documents in sequences of `length` are padded. The kernel is compiled for each."""
    steps, size = [], SMALLEST
    while size < length:
        steps.append(size)
        size *= FACTOR
    return [*steps, length]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def by_documents(query: Heads, key: Heads, value: Heads, segments: Int[Array, "batch length"], attend: Attend) -> Heads:
    """Returns attention within documents, computed by `attend` for one document at a time.

    Args:
        query: Queries.
        key: Keys. The number of heads divides that of queries.
        value: Values, of as many heads as keys.
        segments: int32 document numbers; each document is contiguous in one sequence.
        attend: Attention of one document, hashable.
    """
    arrays = [_rows(x) for x in (query, key, value)]

    def change(size: int, start: Array, end: Array, mixed: Rows) -> Rows:
        parts = [_cut(x, start, size) for x in arrays]
        return _put(mixed, attend(*parts, (end - start)[None]), start, end)

    mixed = _over_documents(change, jnp.zeros_like(arrays[0]), segments)
    return _heads(mixed, query)


def _forward(query: Heads, key: Heads, value: Heads, segments: Array, attend: Attend):
    return cast(Any, by_documents)(query, key, value, segments, attend), (query, key, value, segments)


def _backward(attend: Attend, kept: Any, towards: Heads):
    *arguments, segments = kept
    arrays, flowing = [_rows(x) for x in arguments], _rows(towards)

    def change(size: int, start: Array, end: Array, gradients: list[Rows]) -> list[Rows]:
        counts = jnp.arange(size)[:, None, None] < end - start
        of_document = jnp.where(counts, _cut(flowing, start, size), 0)  # keys must not get the next document's gradient
        _, pull = jax.vjp(lambda *parts: attend(*parts, (end - start)[None]), *(_cut(x, start, size) for x in arrays))
        parts = pull(of_document)
        return [_put(x, part, start, end) for x, part in zip(gradients, parts, strict=True)]

    gradients = _over_documents(change, [jnp.zeros_like(x) for x in arrays], segments)
    return *(_heads(x, like) for x, like in zip(gradients, arguments, strict=True)), None


by_documents.defvjp(_forward, _backward)


def _over_documents(change: Callable[[int, Array, Array, Any], Any], results: Any, segments: Array) -> Any:
    """Returns the results after `results = change(size, start, end, results)` for every document.

    `size` is the padded length of the document, `start` and `end` (exclusive) its positions in the batch.
    """
    steps = sizes(segments.shape[1])
    ends, limits = _ends(segments), jnp.asarray(steps[:-1], jnp.int32)
    branches = [partial(change, size) for size in steps]

    def step(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        start, results = carry
        end = ends[start]
        which = jnp.sum(limits < end - start, dtype=jnp.int32)
        return end, lax.switch(which, branches, start, end, results)

    return lax.while_loop(lambda carry: carry[0] < segments.size, step, (jnp.int32(0), results))[1]


def _ends(segments: Int[Array, "batch length"]) -> Int[Array, " rows"]:
    """Returns, for each position of the batch, the end of its document (exclusive)."""
    last = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (0, 1)), constant_values=True).reshape(-1)
    behind = jnp.where(last, jnp.arange(1, last.size + 1, dtype=jnp.int32), jnp.int32(last.size))
    return lax.cummin(behind, reverse=True)


def _cut(x: Rows, start: Array, size: int) -> Float[Array, "1 size heads width"]:
    """Returns `size` rows from `start` on. Those beyond the end of the batch are arbitrary."""
    first = jnp.minimum(start, x.shape[0] - size)
    return jnp.roll(lax.dynamic_slice_in_dim(x, first, size), first - start, axis=0)[None]


def _put(x: Rows, new: Float[Array, "1 size heads width"], start: Array, end: Array) -> Rows:
    """Returns `x` with its rows from `start` to `end` replaced by the first rows of `new`."""
    size = new.shape[1]
    first = jnp.minimum(start, x.shape[0] - size)
    places = first + jnp.arange(size, dtype=jnp.int32)
    own = ((places >= start) & (places < end))[:, None, None]
    rows = jnp.where(own, jnp.roll(new[0], start - first, axis=0), lax.dynamic_slice_in_dim(x, first, size))
    return lax.dynamic_update_slice_in_dim(x, rows.astype(x.dtype), first, axis=0)


def _rows(x: Heads) -> Rows:
    return x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _heads(rows: Rows, like: Heads) -> Heads:
    batch, heads, length, width = like.shape
    return rows.reshape(batch, length, heads, width).swapaxes(1, 2)
