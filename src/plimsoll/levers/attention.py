"""Attention, causal or not, whose scores are never whole.

Scores have a number for every pair of positions: 4 bytes x heads x length^2 of a sequence, and the backward pass needs
them again, three or four times over. Two ways round it, of the same mathematics:

* `attention_chunk` positions against as many, block by block below the diagonal (attention_blocks.py): every platform
  and precision.
* In bfloat16, cuDNN's kernel on NVIDIA GPUs and Pallas' on TPUs do the same on the chip, without scores in memory. They
  are used wherever they can be (`kernel`) and no chunk is asked for.

A `window` lets a query see so many positions, its own included; cuDNN's kernel knows it, and elsewhere it goes by
blocks: those outside the band are left out, so that time and bytes grow with the length times the window. `segments`
keep the documents of a row apart: blocks that share none are passed over. Pallas' kernel knows them; cuDNN's takes one
length a row, or offsets of documents, from Hopper on, with a sum for every position and every document that there might
be. So it takes a batch at once where each row is one document, and elsewhere one document after the other
(attention_documents.py); several devices each do that with their own examples. A window besides, or a `cap`, which
cuDNN's has not, goes by blocks of `DOCUMENT_BLOCK`, in as few bytes; as does a window over rows so long that cuDNN's
backward pass would need too much (cudnn_workspace.py).

Elsewhere `attention_chunk=0` is, of causal attention, four blocks of queries, each beside the keys up to its end, 5/8
of the square; of the other, all of it. Leave it at that for sequences of 256 and less: blocks are no faster there. From
512 on they are, on a CPU, in a quarter of the bytes and, at 4,096, a thirtieth (notes).
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from plimsoll.levers.attention_blocks import Blocks, Heads, Rows, Seen, chunked
from plimsoll.levers.attention_cudnn import cudnn_attention
from plimsoll.levers.attention_documents import by_documents
from plimsoll.levers.cudnn_workspace import Call, window_is_dear
from plimsoll.levers.precision import Form, batched_dot, batched_dot_rows, rounded
from plimsoll.levers.records.blocks import without_cudnn
from plimsoll.levers.sharding import in_mesh, on_own_rows, row_parts
from plimsoll.types import Compute

STANDS_IN = 128
"""Block of the plain form that is traced where cuDNN is not installed, to estimate: it keeps what cuDNN's keeps."""
WINDOW_BLOCK = 256
"""Of a window, where no chunk is asked for."""
DOCUMENT_BLOCK = 512
"""Of documents and caps on a card where no chunk is asked for and cuDNN's kernel is used but for them."""
KERNEL_BLOCK = 128
"""Positions of which a TPU's kernel takes a whole number."""
LARGEST_KERNEL_BLOCK = 512


def attention(
    query: Heads,
    key: Heads,
    value: Heads,
    *,
    compute: Compute,
    causal: bool = False,
    window: int = 0,
    windowed: Any = True,
    segments: Int[Array, "batch length"] | None = None,
    scale: float | None = None,
    cap: float = 0.0,
) -> Heads:
    """Returns softmax(q k' / sqrt(width)) v over all positions, or, `causal`, over those up to one's own.

    In the type of the query, which key and value have, too.

    Args:
        query: Queries.
        key: Keys, of as many heads or of a number that divides theirs: each serves queries that follow one another.
        value: Values, of as many heads as keys.
        compute: Arithmetic, and the size of blocks.
        causal: Whether a query sees the positions up to its own alone.
        window: Positions that a query of causal attention sees, its own included; 0 for all.
        windowed: Whether there is a window: a boolean, or an array of one where that is known only at run time.
        segments: int32 numbers of documents of causal attention, each in one piece: a query sees its own document.
        scale: Factor of the scores; None for 1 / sqrt(width).
        cap: Scores s become cap * tanh(s / cap) before the softmax; 0 for no cap.
    """
    if in_mesh() and len(query) % row_parts() == 0:
        how = {"compute": compute, "causal": causal, "window": window, "scale": scale, "cap": cap}
        return _on_own_rows(query, key, value, segments, windowed, how)
    length, width = query.shape[2:]
    factor: float = width**-0.5 if scale is None else scale
    window = window if window < length else 0
    known = isinstance(windowed, bool | np.bool_) or not window
    windows = (window if window and windowed else 0,) if known else (0, window)
    which = None if known else jnp.asarray(windowed, jnp.int32)
    own = kernel(compute, length=length, width=width, cap=cap, documents=segments is not None)
    calls = [Call(factor, causal, each, compute.deterministic) for each in windows]
    dear = any(window_is_dear((len(query), length, query.shape[1], width), call) for call in calls)
    if (own == "splash" and windows != (0,)) or (own == "cudnn" and dear):
        own = None
    if own is not None and (own != "cudnn" or _has_cudnn()):
        arrays = [rounded(x, compute.precision) for x in (query, key, value)]
        forms: list[Any] = [partial(_of_the_chip, own, call=call, cap=cap) for call in calls]
        mixed = forms[0](*arrays, segments) if which is None else jax.lax.switch(which, forms, *arrays, segments)
        return mixed.astype(query.dtype)
    form = Form(compute.precision, compute.platform)
    plain = kernel(compute, length=length, width=width) == "cudnn"
    chunk = compute.attention_chunk
    if not chunk and plain:
        chunk = STANDS_IN if own == "cudnn" else DOCUMENT_BLOCK
    elif not chunk and windows != (0,):
        chunk = WINDOW_BLOCK
    if chunk:
        blocks = Blocks(min(chunk, length), form, factor, cap, query.dtype.name)
        seen = tuple(Seen(causal, length, each) for each in windows)
        in_blocks = partial(chunked, blocks=blocks, seen=seen)
        if plain and own is None and not cap and not dear and which is None and _has_cudnn():
            alone = _Alone(in_blocks if windows != (0,) else None, calls[0])
            return cast(Any, _where_alone)(query, key, value, segments, alone)
        return in_blocks(query, key, value, segments, which)
    whole = partial(_in_query_blocks if causal else _whole, form=form, cap=cap)
    return _by_rows(whole, query, key, value, segments, scale=factor)


causal_attention = partial(attention, causal=True)
"""Attention over the positions up to one's own, or the last `window` of them."""


def _on_own_rows(
    query: Heads, key: Heads, value: Heads, segments: Array | None, windowed: Any, how: Mapping[str, Any]
) -> Heads:
    """Returns `attention` of several devices, each over its own examples: none needs another's."""
    numbers = () if segments is None else (segments,)
    known = isinstance(windowed, bool | np.bool_)
    which = () if known else (jnp.asarray(windowed),)

    def attend(query: Heads, key: Heads, value: Heads, *others: Array) -> Heads:
        given = others[0] if numbers else None
        return attention(query, key, value, segments=given, windowed=windowed if known else others[-1], **how)

    return on_own_rows(attend, 3 + len(numbers), alike=len(which))(query, key, value, *numbers, *which)


def kernel(
    compute: Compute, *, length: int, width: int, cap: float = 0.0, documents: bool = False
) -> Literal["cudnn", "splash"] | None:
    """Returns the name of the chip's own attention kernel; None where it has none for these shapes.

    Args:
        compute: Arithmetic, and the platform.
        length: Positions of a row.
        width: Columns of a head.
        cap: Cap of the scores, which cuDNN's has not.
        documents: Whether a row holds several, which cuDNN's is not told of here.
    """
    if compute.platform == "gpu":
        reason = without_cudnn(precision=compute.precision, chunk=compute.attention_chunk, width=width)
        return None if reason or cap or documents else "cudnn"
    plain = compute.attention_chunk or compute.precision != "bfloat16" or length % KERNEL_BLOCK
    return "splash" if compute.platform == "tpu" and not plain else None


def query_blocks(length: int) -> list[tuple[int, int]]:
    """Returns start and end of each block of queries: four, or fewer where they would be of less than 64 queries."""
    rows = max(64, -(-length // 4))
    return [(start, min(start + rows, length)) for start in range(0, length, rows)]


def _by_rows(
    attend: Callable[..., Rows], query: Heads, key: Heads, value: Heads, segments: Array | None, *, scale: float
) -> Heads:
    """Merges examples and heads; the query comes scaled. Scores and their sums are float32."""
    _, heads, length, width = query.shape
    key, value = _repeated(key, heads), _repeated(value, heads)
    wide = [x.astype(jnp.float32).reshape(-1, length, width) for x in (query, key, value)]
    numbers = None if segments is None else jnp.repeat(segments, heads, axis=0)
    return attend(wide[0] * scale, *wide[1:], numbers).reshape(query.shape).astype(query.dtype)


def _repeated(x: Heads, heads: int) -> Heads:
    """Returns keys or values for every head of queries."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def _capped(scores: Array, cap: float) -> Array:
    return cap * jnp.tanh(scores / cap) if cap else scores


def _in_query_blocks(
    query: Rows, key: Rows, value: Rows, segments: Int[Array, "rows length"] | None, *, form: Form, cap: float
) -> Rows:
    blocks = []
    for start, end in query_blocks(query.shape[1]):
        scores = _capped(batched_dot_rows(query[:, start:end], key[:, :end], **form._asdict()), cap)
        seen = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
        if segments is not None:
            seen = seen & (segments[:, start:end, None] == segments[:, None, :end])
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        blocks.append(batched_dot(weights, value[:, :end], **form._asdict()))
    return jnp.concatenate(blocks, axis=1)


def _whole(query: Rows, key: Rows, value: Rows, segments: None, *, form: Form, cap: float) -> Rows:
    weights = jax.nn.softmax(_capped(batched_dot_rows(query, key, **form._asdict()), cap), axis=-1)
    return batched_dot(weights, value, **form._asdict())


def _has_cudnn() -> bool:
    """Returns whether JAX can ask for cuDNN's attention: with its CUDA plug-in, on a card or to compile for one."""
    return any(find_spec(name) is not None for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"))


def _of_the_chip(
    own: str,
    query: Heads,
    key: Heads,
    value: Heads,
    segments: Array | None,
    *,
    call: Call,
    cap: float,
) -> Heads:
    if own == "cudnn":
        return _cudnn(query, key, value, call=call)
    return _splash(query, key, value, segments, causal=call.causal, scale=call.scale, cap=cap)


def _cudnn(query: Heads, key: Heads, value: Heads, *, call: Call) -> Heads:
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    return jnp.swapaxes(cast(Any, cudnn_attention)(query, key, value, None, call), 1, 2)


class _Alone(NamedTuple):
    """Attention by cuDNN, whole where each row is one document: hashable, so that it can be static."""

    in_blocks: Callable[..., Heads] | None
    """How rows of several go; None for one document after the other."""
    call: Call

    def by_cudnn(self, query: Heads, key: Heads, value: Heads) -> Heads:
        arrays = [rounded(x, "bfloat16") for x in (query, key, value)]
        return _cudnn(*arrays, call=self.call).astype(query.dtype)

    def otherwise(self, query: Heads, key: Heads, value: Heads, segments: Array) -> Heads:
        if self.in_blocks is not None:
            return self.in_blocks(query, key, value, segments, None)
        arrays = [rounded(x, "bfloat16") for x in (query, key, value)]
        mixed: Any = cast(Any, by_documents)(*arrays, segments, partial(_cudnn_document, call=self.call))
        return mixed.astype(query.dtype)


def _cudnn_document(query: Array, key: Array, value: Array, length: Array, *, call: Call) -> Array:
    """Returns causal attention over the first `length` positions; what it says behind them is not to be read."""
    return cast(Any, cudnn_attention)(query, key, value, length, call)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _where_alone(query: Heads, key: Heads, value: Heads, segments: Array, how: _Alone) -> Heads:
    """Attends one way or the other. The backward pass computes the forward one again, of the one way: differentiated as
    it stands, a choice keeps what either way needs."""
    by_cudnn = lambda query, key, value, segments: how.by_cudnn(query, key, value)  # noqa: E731
    return jax.lax.cond(_one_document(segments), by_cudnn, how.otherwise, query, key, value, segments)


def _where_alone_forward(query: Heads, key: Heads, value: Heads, segments: Array, how: _Alone):
    return cast(Any, _where_alone)(query, key, value, segments, how), (query, key, value, segments)


def _where_alone_backward(how: _Alone, kept: Any, towards: Heads):
    def by_cudnn(query: Heads, key: Heads, value: Heads, segments: Array):
        return jax.vjp(how.by_cudnn, query, key, value)[1](towards)

    def otherwise(query: Heads, key: Heads, value: Heads, segments: Array):
        return jax.vjp(lambda q, k, v: how.otherwise(q, k, v, segments), query, key, value)[1](towards)

    return *jax.lax.cond(_one_document(kept[-1]), by_cudnn, otherwise, *kept), None


_where_alone.defvjp(_where_alone_forward, _where_alone_backward)


def _one_document(segments: Int[Array, "batch length"]) -> Array:
    return jnp.all(segments == segments[:, :1])


def _splash(
    query: Heads,
    key: Heads,
    value: Heads,
    segments: Array | None = None,
    *,
    causal: bool = True,
    scale: float | None = None,
    cap: float = 0.0,
    interpret: bool = False,
) -> Heads:
    # Pallas is half a second of imports that a CPU run does not need.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    _, heads, length, width = query.shape
    key, value = _repeated(key, heads), _repeated(value, heads)
    size = next(n for n in (LARGEST_KERNEL_BLOCK, 256, KERNEL_BLOCK) if length % n == 0)
    blocks = splash.BlockSizes(
        block_q=size, block_kv=size, block_q_dkv=size, block_kv_dkv=size, block_q_dq=size, block_kv_dq=size
    )
    of_a_head = splash.CausalMask((length, length)) if causal else splash.FullMask((length, length))
    mask = splash.MultiHeadMask([of_a_head] * heads)
    attend: Any = splash.make_splash_mha(
        mask=mask,
        head_shards=1,
        q_seq_shards=1,
        block_sizes=blocks,
        attn_logits_soft_cap=cap or None,
        interpret=interpret,
    )
    documents = () if segments is None else (splash.SegmentIds(segments, segments),)
    scale = width**-0.5 if scale is None else scale
    return jax.vmap(attend)(query * jnp.asarray(scale, query.dtype), key, value, *documents)
