"""Attention, causal or not, whose scores are never whole.

Scores have a number for every pair of positions: 4 bytes x heads x length^2 of a sequence, and the backward pass needs
them again, three or four times over. Two ways round it, of the same mathematics:

* `attention_chunk` positions against as many, block by block below the diagonal: a running maximum and sum make the
  softmax exact, and the backward pass computes each block's scores again from what it keeps, the sum's logarithm of
  every query. Temporaries grow with the length, not with its square. Price: five dots become seven, in small blocks.
  Dao 2023, https://arxiv.org/abs/2307.08691, algorithms 1 and 2, as plain JAX: every platform and precision.
* In bfloat16, cuDNN's kernel on NVIDIA GPUs and Pallas' on TPUs do the same on the chip, without scores in memory. They
  are used wherever they can be (`kernel`) and no chunk is asked for.

A `window` lets a query see so many positions, its own included, and goes by blocks everywhere: those outside the band
are left out, so that time and bytes grow with the length times the window.

Elsewhere `attention_chunk=0` is, of causal attention, four blocks of queries, each beside the keys up to its end, 5/8
of the square; of the other, all of it. Leave it at that for sequences of 256 and less: blocks are no faster there. From
512 on they are, on a CPU, in a quarter of the bytes and, at 4,096, a thirtieth (docs/log.md).
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from plimsoll.levers.precision import Form, batched_dot, batched_dot_rows, rounded
from plimsoll.levers.records.blocks import without_cudnn
from plimsoll.levers.sharding import in_mesh, rows_spec
from plimsoll.types import Compute

Heads = Float[Array, "batch heads length width"]
Rows = Float[Array, "rows length width"]
"""One row per example and head."""

STANDS_IN = 128
"""Block of the plain form that is traced where cuDNN is not installed, to estimate: it keeps what cuDNN's keeps."""
WINDOW_BLOCK = 256
"""Of a window, where no chunk is asked for."""
KERNEL_BLOCK = 128
"""Positions of which a TPU's kernel takes a whole number."""
LARGEST_KERNEL_BLOCK = 512


class Seen(NamedTuple):
    """Keys that a query sees: hashable, so that it can be static under `custom_vjp`."""

    causal: bool
    length: int
    """Of the sequence, before it was padded to whole blocks."""
    window: int = 0
    """Positions that a query sees, its own included; 0 for all there are. Of causal attention."""


def causal_attention(query: Heads, key: Heads, value: Heads, *, compute: Compute, window: int = 0) -> Heads:
    """Returns softmax(q k' / sqrt(width)) v over the positions up to one's own, or the last `window` of them.

    In the type of the query, which key and value have, too.
    """
    return attention(query, key, value, compute=compute, causal=True, window=window)


def attention(
    query: Heads, key: Heads, value: Heads, *, compute: Compute, causal: bool = False, window: int = 0
) -> Heads:
    """Returns softmax(q k' / sqrt(width)) v over all positions, or over those of `causal_attention`.

    In the type of the query, which key and value have, too. These may have fewer heads, of which each serves as many
    neighbouring heads of the query: cuDNN reads them as they are, and other forms repeated.
    """
    length, width = query.shape[2:]
    window = window if window < length else 0
    form, seen = Form(compute.precision, compute.platform), Seen(causal, length, window)
    chunked = partial(_chunked, form=form, seen=seen)
    which = kernel(compute, length=length, width=width) if not window else None
    if which != "cudnn" or not _has_cudnn():
        key, value = (jnp.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    if compute.attention_chunk or window:
        chunk = min(compute.attention_chunk or WINDOW_BLOCK, length)
        return _by_rows(partial(chunked, chunk=chunk), query, key, value)
    if which == "cudnn" and not _has_cudnn():
        return _by_rows(partial(chunked, chunk=min(STANDS_IN, length)), query, key, value)
    if which is not None:
        attend = {"cudnn": _cudnn, "splash": _splash}[which]
        q, k, v = (rounded(x, compute.precision) for x in (query, key, value))
        return attend(q, k, v, causal=causal).astype(query.dtype)
    return _by_rows(partial(_in_query_blocks if causal else _whole, form=form), query, key, value)


def kernel(compute: Compute, *, length: int, width: int) -> Literal["cudnn", "splash"] | None:
    """Returns the name of the chip's own attention kernel; None where it has none for these shapes."""
    if compute.platform == "gpu":
        reason = without_cudnn(precision=compute.precision, chunk=compute.attention_chunk, width=width)
        return None if reason else "cudnn"
    plain = compute.attention_chunk or compute.precision != "bfloat16" or length % KERNEL_BLOCK
    return "splash" if compute.platform == "tpu" and not plain else None


def query_blocks(length: int) -> list[tuple[int, int]]:
    """Returns start and end of each block of queries: four, or fewer where they would be of less than 64 queries."""
    rows = max(64, -(-length // 4))
    return [(start, min(start + rows, length)) for start in range(0, length, rows)]


def _by_rows(attend: Callable[[Rows, Rows, Rows], Rows], query: Heads, key: Heads, value: Heads) -> Heads:
    """Merges examples and heads; the query comes scaled. Scores and their sums are float32."""
    length, width = query.shape[2:]
    wide = [x.astype(jnp.float32).reshape(-1, length, width) for x in (query, key, value)]
    return attend(wide[0] * width**-0.5, *wide[1:]).reshape(query.shape).astype(query.dtype)


def _in_query_blocks(query: Rows, key: Rows, value: Rows, *, form: Form) -> Rows:
    blocks = []
    for start, end in query_blocks(query.shape[1]):
        scores = batched_dot_rows(query[:, start:end], key[:, :end], **form._asdict())
        seen = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        blocks.append(batched_dot(weights, value[:, :end], **form._asdict()))
    return jnp.concatenate(blocks, axis=1)


def _whole(query: Rows, key: Rows, value: Rows, *, form: Form) -> Rows:
    weights = jax.nn.softmax(batched_dot_rows(query, key, **form._asdict()), axis=-1)
    return batched_dot(weights, value, **form._asdict())


def _chunked(query: Rows, key: Rows, value: Rows, *, chunk: int, form: Form, seen: Seen) -> Rows:
    padding = ((0, 0), (0, -seen.length % chunk), (0, 0))
    query, key, value = (jnp.pad(x, padding) for x in (query, key, value))
    return jnp.reshape(_flash(query, key, value, chunk, form, seen), query.shape)[:, : seen.length]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _flash(query: Rows, key: Rows, value: Rows, chunk: int, form: Form, seen: Seen) -> Rows:
    return _flash_forward(query, key, value, chunk, form, seen)[0]


def _flash_forward(query: Rows, key: Rows, value: Rows, chunk: int, form: Form, seen: Seen):
    query, key, value = (form.operand(x) for x in (query, key, value))
    rows, length, _ = query.shape
    at = partial(_block, chunk=chunk)

    def add_block(sums: tuple[Array, Array, Array], pair: tuple[Array, Array]):
        i, j = pair
        highest, total, mixed = at(sums[0], i), at(sums[1], i), at(sums[2], i)
        scores = _scores(at(query, i), at(key, j), pair, form, seen)
        now = jnp.maximum(highest, jnp.max(scores, axis=-1))
        weights, before = jnp.exp(scores - now[..., None]), jnp.exp(highest - now)
        total = total * before + jnp.sum(weights, axis=-1)
        mixed = mixed * before[..., None] + form.contract(form.operand(weights), at(value, j), b_axis=-2)
        return (_put(sums[0], now, i), _put(sums[1], total, i), _put(sums[2], mixed, i)), None

    start = jnp.full((rows, length), -jnp.inf), jnp.zeros((rows, length)), jnp.zeros(query.shape)
    (highest, total, mixed), _ = jax.lax.scan(add_block, start, _pairs(length // chunk, chunk, seen))
    result = mixed / total[..., None]
    return result, (query, key, value, form.operand(result), highest + jnp.log(total))


def _flash_backward(chunk: int, form: Form, seen: Seen, kept, towards: Rows):
    query, key, value, result, log_total = kept
    at = partial(_block, chunk=chunk)
    weighed = jnp.sum(towards * result.astype(towards.dtype), axis=-1)
    towards = form.operand(towards)

    def add_block(sums: tuple[Array, Array, Array], pair: tuple[Array, Array]):
        i, j = pair
        to_query, to_key, to_value = sums
        scores = _scores(at(query, i), at(key, j), pair, form, seen)
        weights = jnp.exp(scores - at(log_total, i)[..., None])
        to_weights = form.contract(at(towards, i), at(value, j), b_axis=-1)
        to_scores = form.operand(weights * (to_weights - at(weighed, i)[..., None]))
        more_value = form.contract(form.transposed(form.operand(weights)), at(towards, i), b_axis=-2)
        more_query = form.contract(to_scores, at(key, j), b_axis=-2)
        more_key = form.contract(form.transposed(to_scores), at(query, i), b_axis=-2)
        return (_add(to_query, more_query, i), _add(to_key, more_key, j), _add(to_value, more_value, j)), None

    zeros = jnp.zeros(query.shape)
    sums, _ = jax.lax.scan(add_block, (zeros, zeros, zeros), _pairs(query.shape[1] // chunk, chunk, seen))
    return sums


_flash.defvjp(_flash_forward, _flash_backward)


def _pairs(blocks: int, chunk: int, seen: Seen) -> tuple[Array, Array]:
    """Returns pairs of blocks of queries and keys: all, or those not above the diagonal, or in the window."""
    if seen.window:  # from the diagonal outwards: what follows a block in which a query sees itself may be unseen
        firsts = [max(0, (i * chunk - seen.window + 1) // chunk) for i in range(blocks)]
        i, j = np.array([(i, j) for i in range(blocks) for j in range(i, firsts[i] - 1, -1)]).T
    else:
        i, j = np.tril_indices(blocks) if seen.causal else np.indices((blocks, blocks)).reshape(2, -1)
    return jnp.asarray(i, jnp.int32), jnp.asarray(j, jnp.int32)


def _scores(
    query: Rows, key: Rows, pair: tuple[Array, Array], form: Form, seen: Seen
) -> Float[Array, "rows queries keys"]:
    """Returns the scores, -inf where a key is not seen. Every query sees a key in the first of its blocks."""
    i, j = pair
    chunk = query.shape[1]
    places = jnp.arange(chunk, dtype=jnp.int32)
    queries, keys = i * chunk + places, j * chunk + places
    if seen.causal:  # no query sees the keys after it, so what was added is not seen
        visible = keys[None, :] <= queries[:, None]
        if seen.window:
            visible = visible & (keys[None, :] > queries[:, None] - seen.window)
    else:
        visible = jnp.broadcast_to(keys[None, :] < seen.length, (chunk, chunk))
    return jnp.where(visible, form.contract(query, key, b_axis=-1), -jnp.inf)


def _block(x: Array, i: Array, *, chunk: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=1)


def _put(x: Array, block: Array, i: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(x, block, i * block.shape[1], axis=1)


def _add(x: Array, block: Array, i: Array) -> Array:
    return _put(x, _block(x, i, chunk=block.shape[1]) + block, i)


def _has_cudnn() -> bool:
    """Returns whether JAX can ask for cuDNN's attention: with its CUDA plug-in, on a card or to compile for one."""
    return any(find_spec(name) is not None for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"))


def _cudnn(query: Heads, key: Heads, value: Heads, *, causal: bool) -> Heads:
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=causal, implementation="cudnn")
    return jnp.swapaxes(mixed, 1, 2)


def _splash(query: Heads, key: Heads, value: Heads, *, causal: bool = True, interpret: bool = False) -> Heads:
    # Pallas is half a second of imports that a CPU run does not need.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    _, heads, length, width = query.shape
    size = next(n for n in (LARGEST_KERNEL_BLOCK, 256, KERNEL_BLOCK) if length % n == 0)
    blocks = splash.BlockSizes(
        block_q=size, block_kv=size, block_q_dkv=size, block_kv_dkv=size, block_q_dq=size, block_kv_dq=size
    )
    of_a_head = splash.CausalMask((length, length)) if causal else splash.FullMask((length, length))
    mask = splash.MultiHeadMask([of_a_head] * heads)
    attend: Any = splash.make_splash_mha(
        mask=mask, head_shards=1, q_seq_shards=1, block_sizes=blocks, interpret=interpret
    )
    over_examples = jax.vmap(attend)
    if in_mesh():  # a kernel cannot be split by the partitioner: each device runs it on its own examples
        rows = rows_spec()
        axes = {name for names in rows for name in (names if isinstance(names, tuple) else (names,))}
        over_examples = jax.shard_map(
            over_examples, axis_names=axes, in_specs=(rows,) * 3, out_specs=rows, check_vma=False
        )
    return over_examples(query * jnp.asarray(width**-0.5, query.dtype), key, value)
