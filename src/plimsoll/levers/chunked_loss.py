"""Cross-entropy over a vocabulary, a few rows of logits at a time.

Computed directly, the logits have shape (tokens, vocab), and the backward pass needs them together with a gradient of
the same size. Here `chunk` rows are computed, reduced to a number and thrown away. Their gradient is known as soon as
they are: what flows back to the hidden states and to the head's weights is made in the same pass, and the backward
pass only multiplies it by a number. So no logits are computed twice: three multiplies by the head, as without chunks.
Hsu et al. 2024, https://arxiv.org/abs/2410.10989, section 3.2 (FusedLinearCrossEntropy).

Price: the gradient of the head's weights is read and written once per chunk, which counts where chunks are small. On a
CPU 256 tokens are as fast as all at once (notes); a GPU wants thousands (`records.blocks.CHUNKS_ON_A_CARD`).
Leave it off (`chunk=0`) when the logits are already small. Wijmans et al. 2024, https://arxiv.org/abs/2411.09009, never
write even a chunk of logits to device memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plimsoll.levers.activations import in_float32
from plimsoll.levers.sharding import by_rows, row_parts
from plimsoll.types import IGNORE

LIFT = 2.0**14
"""The largest probability is 1, and float16 ends at 65,504."""

Head = Callable[[Float[Array, "tokens width"], Any], Float[Array, "tokens vocab"]]
"""Rows and the head's weights to logits. It may close over settings, but over no array: those would get no gradient."""
Rule = Callable[[Float[Array, "tokens width"], Any, Int[Array, " tokens"], Any], Float[Array, ""]]
"""Rows, weights, labels and what is fixed to nats, summed over the tokens whose label is not `IGNORE`. Likewise."""


def chunked_cross_entropy(
    hidden: Float[Array, "tokens width"],
    weights: Any,
    labels: Int[Array, " tokens"],
    *,
    head: Head,
    chunk: int,
    lift: float = 1.0,
    platform: str = "cpu",
    learned: bool = True,
) -> Float[Array, ""]:
    """Sums `-log p(label)`, in nats, over the tokens whose label is not `IGNORE`, `chunk` tokens at a time.

    `weights` is what `head(rows, weights)` takes: a pytree of floating-point arrays. `chunk=0` takes all tokens at
    once. A sum, because the mean of unequal chunks (or micro-batches) is not the mean over tokens: the caller divides
    by the number of counted tokens, once.

    What flows back into `head` is a probability, or one less: made before any scale of the loss is known. A head that
    rounds it to float16 would lose those below 6e-8, so it is multiplied by `lift` on the way in and what comes out is
    divided by it: `LIFT` there, a power of two, so that it changes nothing else. On an accelerator (`platform`) the
    gradient of the logits is written once (`nats_in_one_pass`). Without `learned` the weights take no gradient, which
    would be as large as they are, in float32; they may then have any form that `head` reads.
    """
    nats = each_nats if platform == "cpu" else nats_in_one_pass
    rule, learned_weights, fixed = _NatsOf(head, nats), weights if learned else None, None if learned else weights
    return chunked_sum(hidden, learned_weights, labels, rule=rule, fixed=fixed, chunk=chunk, lift=lift)


class _NatsOf(NamedTuple):
    """The rule of one softmax, over weights that are learned or fixed."""

    head: Head
    nats: Callable[[Array, Array], Array]

    def __call__(self, rows: Array, weights: Any, labels: Array, fixed: Any) -> Array:
        return jnp.sum(self.nats(self.head(rows, fixed if weights is None else weights), labels))


def chunked_sum(
    hidden: Float[Array, "tokens width"],
    weights: Any,
    labels: Int[Array, " tokens"],
    *,
    rule: Rule,
    fixed: Any = None,
    chunk: int,
    lift: float = 1.0,
    skip: bool = False,
) -> Float[Array, ""]:
    """Returns the sum of `rule` over `chunk` tokens at a time, in the same way: for a loss that is no plain softmax.

    `fixed` is handed to it as it is: integers that it looks up. `skip` leaves out chunks in which no label is counted:
    worth it where most are not, and those that are come first.
    """
    tokens, _ = hidden.shape
    how = _How(rule, min(chunk, tokens) if chunk else tokens, lift, skip)
    return _summed(hidden, weights, labels, fixed, how)


def each_nats(logits: Float[Array, "tokens vocab"], labels: Int[Array, " tokens"]) -> Float[Array, " tokens"]:
    """Returns `-log p(label)` of each token, 0 where the label is `IGNORE`."""
    counted = labels != IGNORE
    picked = jnp.take_along_axis(logits, jnp.where(counted, labels, 0)[:, None], axis=-1)[:, 0]
    return jnp.where(counted, jax.nn.logsumexp(logits, axis=-1) - picked, 0.0)


@jax.custom_vjp
def nats_in_one_pass(logits: Float[Array, "tokens vocab"], labels: Int[Array, " tokens"]) -> Float[Array, " tokens"]:
    """Returns `each_nats`, with a gradient that is an operation on single numbers, probability less one or zero.

    The compiler fuses it with the rounding to what the products by the head read, so that no gradient of the logits is
    in memory in float32: that of `each_nats` is written, scattered into and read again.
    """
    return each_nats(logits, labels)


def _one_pass_forward(logits: Array, labels: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return each_nats(logits, labels), (logits, jax.nn.logsumexp(logits, axis=-1), labels)


def _one_pass_backward(kept: tuple[Array, Array, Array], towards: Array) -> tuple[Array, None]:
    logits, log_total, labels = kept
    towards = jnp.where(labels != IGNORE, towards, 0.0)
    hit = jnp.arange(logits.shape[1], dtype=labels.dtype) == labels[:, None]
    return towards[:, None] * (jnp.exp(logits - log_total[:, None]) - hit.astype(jnp.float32)), None


nats_in_one_pass.defvjp(_one_pass_forward, _one_pass_backward)


def chunked_nats(
    hidden: Float[Array, "tokens width"], weights: Any, labels: Int[Array, " tokens"], *, head: Head, chunk: int
) -> Float[Array, " tokens"]:
    """Returns `-log p(label)` of each token, 0 where it is `IGNORE`, `chunk` at a time: to evaluate, not to learn."""
    tokens = labels.size

    def one_chunk(rows: tuple[Array, Array]) -> Array:
        hidden_rows, label_rows = rows
        return each_nats(head(hidden_rows, weights), label_rows)

    nats = jax.lax.map(one_chunk, _in_chunks(hidden, labels, min(chunk or tokens, tokens)))
    return _joined(nats[..., None], tokens)[:, 0]


class _How(NamedTuple):
    """Hashable, so that it can be static under `custom_vjp`."""

    rule: Rule
    chunk: int
    lift: float
    skip: bool

    def where_counted(self, compute: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `compute` of sums and rows, or, where chunks may be skipped, `otherwise` for rows without a label."""
        if not self.skip:
            return compute
        return lambda sums, rows: jax.lax.cond(jnp.any(rows[1] != IGNORE), compute, otherwise, sums, rows)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _summed(hidden: Array, weights: Any, labels: Array, fixed: Any, how: _How) -> Array:
    def add_chunk(total: Array, rows: tuple[Array, Array]) -> tuple[Array, None]:
        hidden_rows, label_rows = rows
        return total + how.rule(hidden_rows, weights, label_rows, fixed), None

    chunk_of = how.where_counted(add_chunk, lambda total, _: (total, None))
    total, _ = jax.lax.scan(chunk_of, jnp.float32(0), _in_chunks(hidden, labels, how.chunk))
    return total


def _summed_forward(hidden: Array, weights: Any, labels: Array, fixed: Any, how: _How):
    """Returns the sum of losses, and the gradients of rows and weights, scaled by `how.lift` against underflow."""

    def add_chunk(sums: tuple[Array, Any], rows: tuple[Array, Array]):
        hidden_rows, label_rows = rows
        more, pull = jax.vjp(lambda rows, weights: how.rule(rows, weights, label_rows, fixed), hidden_rows, weights)
        towards_rows, towards_weights = pull(jnp.full_like(more, how.lift))
        total, so_far = sums
        added = jax.tree.map(lambda sum, gradient: sum + gradient.astype(jnp.float32), so_far, towards_weights)
        return (total + more, added), towards_rows

    chunk_of = how.where_counted(add_chunk, lambda sums, rows: (sums, jnp.zeros_like(rows[0])))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), weights)
    sums, towards_rows = jax.lax.scan(chunk_of, (jnp.float32(0), nothing), _in_chunks(hidden, labels, how.chunk))
    total, towards_weights = sums
    towards_weights = jax.tree.map(lambda sum, leaf: sum.astype(leaf.dtype), towards_weights, weights)
    return total, (_joined(towards_rows, hidden.shape[0]), towards_weights)


def _summed_backward(how: _How, kept: tuple[Array, Any], towards_total: Array):
    towards_hidden, towards_weights = jax.tree.map(
        lambda x: in_float32(jnp.multiply, x, towards_total / how.lift), kept
    )
    return towards_hidden, towards_weights, None, None


_summed.defvjp(_summed_forward, _summed_backward)


def _in_chunks(hidden: Array, labels: Array, chunk: int) -> tuple[Array, Array]:
    """Returns rows and labels as (chunks, tokens, ...). In a mesh a chunk has so many tokens of every device, which are
    there already: cut along all tokens, each chunk would be one device's, and all rows sent to all for each of them."""
    return _cut(hidden, chunk, 0), _cut(labels[:, None], chunk, IGNORE)[..., 0]


def _cut(x: Float[Array, "tokens width"], chunk: int, filled: int) -> Float[Array, "chunks rows width"]:
    parts, width = _parts(len(x)), x.shape[1]
    own = len(x) // parts
    chunk = min(chunk, own)
    of_devices = jnp.pad(x.reshape(parts, own, width), ((0, 0), (0, -own % chunk), (0, 0)), constant_values=filled)
    if parts == 1:
        return of_devices.reshape(-1, chunk, width)
    chunks = of_devices.reshape(parts, -1, chunk, width).swapaxes(0, 1)
    return by_rows(chunks.reshape(-1, parts * chunk, width), axis=1)


def _joined(rows: Float[Array, "chunks rows width"], tokens: int) -> Float[Array, "tokens width"]:
    """Joins what `_in_chunks` has cut, without what it was filled up with."""
    parts, (_, count, width) = _parts(tokens), rows.shape
    if parts == 1:
        return rows.reshape(-1, width)[:tokens]
    of_devices = rows.reshape(-1, parts, count // parts, width).swapaxes(0, 1).reshape(parts, -1, width)
    return by_rows(of_devices[:, : tokens // parts].reshape(tokens, width))


def _parts(tokens: int) -> int:
    """Returns the number of devices that have equal parts of the tokens."""
    parts = row_parts()
    return parts if tokens % parts == 0 else 1
