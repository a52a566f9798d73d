"""Attention, causal or not, that avoids storing all scores.

There is a score for every pair of positions: 4 bytes x heads x length^2 a sequence, and the backward pass needs three
or four such arrays. Two ways avoid them, with the same mathematics:

* Attention in blocks of `attention_chunk` positions below the diagonal (attention_blocks.py), on every platform and in
  every precision.
* In bfloat16, cuDNN's kernel on NVIDIA GPUs and Pallas' kernel on TPUs do the same on the chip, without scores in
  memory. They are used if they support the arguments (`kernel`) and `attention_chunk` is 0.

With a `window` a query sees only that many positions, its own included. cuDNN's kernel supports windows. Elsewhere
attention works in blocks and skips those outside the window, so that time and bytes grow with length times window.

`segments` separate the documents of a sequence; blocks without a common document are skipped. Pallas' kernel supports
segments. cuDNN's kernel takes one length per sequence. From Hopper on it also takes offsets of documents, but stores a
softmax sum for every position and every possible document. So it is called for a complete batch only if each sequence
is one document, and otherwise for one document after another (attention_documents.py). Each device does that for its
own examples.

Two cases that cuDNN does not support are computed in blocks of `DOCUMENT_BLOCK`, in as few bytes: documents with a
window, and a `cap` on scores. The same holds for a window over sequences so long that cuDNN's backward pass would need
too much memory (cudnn_workspace.py).

In all other cases `attention_chunk=0` computes causal attention in four blocks of queries, each with the keys up to its
end: 5/8 of all scores. Attention that is not causal computes all scores at once. The value 0 is best for up to 256
positions. From 512 on blocks of `attention_chunk` are faster on a CPU, in a quarter of the bytes, and at 4,096 in a
thirtieth (notes).
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from plimsoll.levers.attention_blocks import Blocks, Heads, Rows, Seen, chunked, one_of
from plimsoll.levers.attention_cudnn import cudnn_attention
from plimsoll.levers.attention_documents import by_documents
from plimsoll.levers.cudnn_workspace import Call, window_is_dear
from plimsoll.levers.precision import Form, batched_dot, batched_dot_rows, rounded
from plimsoll.levers.records.blocks import without_cudnn
from plimsoll.levers.sharding import in_mesh, on_own_rows, row_parts
from plimsoll.types import Compute

STANDS_IN = 128
"""Positions per block if attention in blocks is traced in place of cuDNN's kernel, to estimate memory without cuDNN.
Both keep the same arrays for the backward pass."""
WINDOW_BLOCK = 256
"""Number of positions in a block for windowed attention if `attention_chunk` is 0."""
DOCUMENT_BLOCK = 512
"""Positions per block on a GPU if `attention_chunk` is 0, and documents, a cap or a window exclude cuDNN's kernel."""
KERNEL_BLOCK = 128
"""Pallas' kernel for TPUs needs sequences whose length is a multiple of this."""
LARGEST_KERNEL_BLOCK = 512
"""Largest block of Pallas' kernel for TPUs, in positions."""


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
    """Returns softmax(q k' / sqrt(width)) v, in the common type of query, key and value.

    Args:
        query: Queries.
        key: Keys. Their number of heads divides that of queries: each serves several consecutive heads of queries.
        value: Values, with as many heads as keys.
        compute: Precision, platform, and the size of blocks.
        causal: Whether a query sees only the positions up to its own.
        window: Positions that a query of causal attention sees, its own included; 0 for all.
        windowed: Whether `window` applies: a boolean, or a boolean array if that is known only at run time.
        segments: int32 document numbers for causal attention; a query sees only its own document. Each document is
            contiguous.
        scale: Factor of the scores; None for 1 / sqrt(width).
        cap: Scores s become cap * tanh(s / cap) before the softmax; 0 for no cap.
    """
    if in_mesh() and len(query) % row_parts() == 0:
        how = {"compute": compute, "causal": causal, "window": window, "scale": scale, "cap": cap}
        return _on_own_rows(query, key, value, segments, windowed, how)

    # Window sizes to compile: one (0 for no window), or 0 and `window` if a traced value chooses between them.
    batch, heads, length, width = query.shape
    window = window if window < length else 0
    is_known = isinstance(windowed, bool | np.bool_) or not window
    which = None if is_known else jnp.asarray(windowed, jnp.int32)
    windows = (window if window and windowed else 0,) if is_known else (0, window)
    factor: float = width**-0.5 if scale is None else scale
    calls = tuple(Call(factor, causal, each, compute.deterministic) for each in windows)
    asked = _Asked(compute, calls, cap, segments is not None, (batch, length, heads, width), query.dtype.name)

    # Use the chip's own kernel, or blocks of queries and keys, or all scores of a block of queries at once.
    own = asked.own_kernel()
    chunk = asked.chunk(own)
    if own == "splash" or (own == "cudnn" and _has_cudnn()):
        attend = _cudnn if own == "cudnn" else partial(_splash, cap=cap)
        return _in_bfloat16(one_of([partial(attend, call=call) for call in calls], which), query, key, value, segments)
    if chunk:
        return asked.by_blocks(chunk, which)(query, key, value, segments)
    whole = partial(_in_query_blocks if causal else _whole, form=Form.of(compute), cap=cap)
    return _by_rows(whole, query, key, value, segments, scale=factor)


causal_attention = partial(attention, causal=True)
"""Attention over the positions up to the query's own, or over the nearest `window` of these."""


class _Asked(NamedTuple):
    """The settings of a call of `attention`, without its arrays."""

    compute: Compute
    calls: tuple[Call, ...]
    """Settings for cuDNN: one set, or two (without and with window) if `windowed` is known only at run time."""
    cap: float
    has_documents: bool
    shape: tuple[int, int, int, int]
    """Shape of the queries: batch, length, heads, width."""
    dtype: str

    @property
    def is_windowed(self) -> bool:
        return any(call.window for call in self.calls)

    @property
    def is_too_large_for_cudnn(self) -> bool:
        """Whether windowed attention would need too much memory in cuDNN's backward pass."""
        return any(window_is_dear(self.shape, call) for call in self.calls)

    def own_kernel(self, *, plain: bool = False) -> str | None:
        """Returns the name of the chip's own kernel, or None if it does not support these settings.

        With `plain`, documents, cap and window are ignored.
        """
        _, length, _, width = self.shape
        if plain:
            return kernel(self.compute, length=length, width=width)
        own = kernel(self.compute, length=length, width=width, cap=self.cap, documents=self.has_documents)
        is_too_much = self.is_windowed if own == "splash" else self.is_too_large_for_cudnn
        return None if is_too_much else own

    def chunk(self, own: str | None) -> int:
        """Returns the number of positions per block: `attention_chunk`, or a default for the chip; 0 for no blocks."""
        if self.compute.attention_chunk:
            return self.compute.attention_chunk
        if self.own_kernel(plain=True) == "cudnn":
            return STANDS_IN if own == "cudnn" else DOCUMENT_BLOCK
        return WINDOW_BLOCK if self.is_windowed else 0

    def by_blocks(self, chunk: int, which: Array | None) -> Callable[..., Heads]:
        """Returns an attention function that works in blocks of `chunk` positions, or with cuDNN on single documents.

        `which` is the run-time index of the item of `calls` to use; None if there is one item.
        """
        call = self.calls[0]
        length = self.shape[1]
        blocks = Blocks(min(chunk, length), Form.of(self.compute), call.scale, self.cap, self.dtype)
        seen = tuple(Seen(call.causal, length, call.window) for call in self.calls)
        in_blocks = partial(chunked, which=which, blocks=blocks, seen=seen)
        is_beyond_cudnn = self.cap or self.is_too_large_for_cudnn or which is not None or not self.has_documents
        if is_beyond_cudnn or self.own_kernel(plain=True) != "cudnn" or not _has_cudnn():
            return in_blocks
        return partial(cast(Any, _where_alone), how=_Alone(in_blocks if self.is_windowed else None, call))


def _on_own_rows(
    query: Heads, key: Heads, value: Heads, segments: Array | None, windowed: Any, how: Mapping[str, Any]
) -> Heads:
    """Returns `attention` with options `how`, computed by each device of the mesh for its own examples."""
    which = None if isinstance(windowed, bool | np.bool_) else jnp.asarray(windowed)

    def attend(query: Heads, key: Heads, value: Heads, segments: Array | None, which: Array | None) -> Heads:
        return attention(query, key, value, segments=segments, windowed=windowed if which is None else which, **how)

    return on_own_rows(attend, 4, alike=1)(query, key, value, segments, which)


def kernel(
    compute: Compute, *, length: int, width: int, cap: float = 0.0, documents: bool = False
) -> Literal["cudnn", "splash"] | None:
    """Returns the name of the chip's own attention kernel; None if it has none for these arguments.

    Args:
        compute: Precision, and the platform.
        length: Positions of a sequence.
        width: Columns of a head.
        cap: Cap of the scores, 0 for none. cuDNN's kernel supports no cap.
        documents: Whether a sequence may hold several documents. cuDNN's kernel, as called here, cannot separate them.
    """
    if compute.platform == "gpu":
        reason = without_cudnn(precision=compute.precision, chunk=compute.attention_chunk, width=width)
        return None if reason or cap or documents else "cudnn"
    plain = compute.attention_chunk or compute.precision != "bfloat16" or length % KERNEL_BLOCK
    return "splash" if compute.platform == "tpu" and not plain else None


def query_blocks(length: int) -> list[tuple[int, int]]:
    """Returns start and end of each block of queries: four blocks, or fewer if they would have less than 64 each."""
    rows = max(64, -(-length // 4))
    return [(start, min(start + rows, length)) for start in range(0, length, rows)]


def _by_rows(
    attend: Callable[..., Rows], query: Heads, key: Heads, value: Heads, segments: Array | None, *, scale: float
) -> Heads:
    """Applies `attend` to float32 arrays whose first axis merges examples and heads, with queries times `scale`."""
    _, heads, length, width = query.shape
    key, value = _repeated(key, heads), _repeated(value, heads)
    wide = [x.astype(jnp.float32).reshape(-1, length, width) for x in (query, key, value)]
    numbers = None if segments is None else jnp.repeat(segments, heads, axis=0)
    return attend(wide[0] * scale, *wide[1:], numbers).reshape(query.shape).astype(query.dtype)


def _repeated(x: Heads, heads: int) -> Heads:
    """Returns keys or values, repeated for every head of queries."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def _capped(scores: Array, cap: float) -> Array:
    return cap * jnp.tanh(scores / cap) if cap else scores


def _in_query_blocks(
    query: Rows, key: Rows, value: Rows, segments: Int[Array, "rows length"] | None, *, form: Form, cap: float
) -> Rows:
    blocks = []
    for start, end in query_blocks(query.shape[1]):
        scores = _capped(batched_dot_rows(query[:, start:end], key[:, :end], form), cap)
        seen = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
        if segments is not None:
            seen = seen & (segments[:, start:end, None] == segments[:, None, :end])
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        blocks.append(batched_dot(weights, value[:, :end], form))
    return jnp.concatenate(blocks, axis=1)


def _whole(query: Rows, key: Rows, value: Rows, segments: None, *, form: Form, cap: float) -> Rows:
    weights = jax.nn.softmax(_capped(batched_dot_rows(query, key, form), cap), axis=-1)
    return batched_dot(weights, value, form)


def _has_cudnn() -> bool:
    """Returns True if JAX's CUDA plug-in is installed, which cuDNN's attention needs to run and to compile."""
    return any(find_spec(name) is not None for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"))


def _in_bfloat16(attend: Callable[..., Heads], query: Heads, key: Heads, value: Heads, *others: Any) -> Heads:
    """Returns the result of a chip's kernel for arrays rounded to bfloat16, in the type of the query."""
    arrays = [rounded(x, "bfloat16") for x in (query, key, value)]
    return attend(*arrays, *others).astype(query.dtype)


def _cudnn(query: Heads, key: Heads, value: Heads, segments: None, *, call: Call) -> Heads:
    del segments
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    return jnp.swapaxes(cast(Any, cudnn_attention)(query, key, value, None, call), 1, 2)


class _Alone(NamedTuple):
    """Attention within documents: by one call of cuDNN if each sequence is one document, else by `otherwise`.

    It is a hashable static argument for `custom_vjp`.
    """

    in_blocks: Callable[..., Heads] | None
    """Attention for sequences of several documents; None to call cuDNN for one document after another."""
    call: Call

    def by_cudnn(self, query: Heads, key: Heads, value: Heads) -> Heads:
        return _in_bfloat16(partial(_cudnn, segments=None, call=self.call), query, key, value)

    def otherwise(self, query: Heads, key: Heads, value: Heads, segments: Array) -> Heads:
        if self.in_blocks is not None:
            return self.in_blocks(query, key, value, segments)
        document = partial(_cudnn_document, call=self.call)
        return _in_bfloat16(cast(Any, by_documents), query, key, value, segments, document)


def _cudnn_document(query: Array, key: Array, value: Array, length: Array, *, call: Call) -> Array:
    """Returns causal attention over the first `length` positions. Later positions are undefined."""
    return cast(Any, cudnn_attention)(query, key, value, length, call)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _where_alone(query: Heads, key: Heads, value: Heads, segments: Array, how: _Alone) -> Heads:
    """Attends by `how.by_cudnn` if each sequence is one document, else by `how.otherwise`.

    The backward pass computes the chosen forward pass again, because the gradient of a plain `cond` would keep the
    arrays of both branches.
    """
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
    segments: Array | None,
    *,
    call: Call,
    cap: float = 0.0,
    interpret: bool = False,
) -> Heads:
    # Importing Pallas takes half a second, which a CPU run does not need.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    _, heads, length, _ = query.shape
    key, value = _repeated(key, heads), _repeated(value, heads)
    size = next(n for n in (LARGEST_KERNEL_BLOCK, 256, KERNEL_BLOCK) if length % n == 0)
    sides = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    blocks = splash.BlockSizes(**dict.fromkeys(sides, size))
    of_a_head = splash.CausalMask((length, length)) if call.causal else splash.FullMask((length, length))
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
    return jax.vmap(attend)(query * jnp.asarray(call.scale, query.dtype), key, value, *documents)
