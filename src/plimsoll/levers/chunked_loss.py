"""Cross-entropy over a vocabulary, computed from a few rows of logits at a time.

Computed directly, the logits have shape (tokens, vocab), and the backward pass needs them together with a gradient of
the same size. Here `chunk` rows of logits are computed, reduced to a number and thrown away. The same pass computes the
gradients of hidden states and of the head's weights; the backward pass only multiplies them by a number. So no logits
are computed twice, and there are three products with the head, as without chunks. Hsu et al. 2024,
https://arxiv.org/abs/2410.10989, section 3.2 (FusedLinearCrossEntropy).

Price: the gradient of the head's weights is read and written once per chunk, which matters if chunks are small. On a
CPU 256 tokens are as fast as all at once (notes); a GPU needs thousands (`records.blocks.CHUNKS_ON_A_CARD`). Leave it
off (`chunk=0`) if the logits are small. Wijmans et al. 2024, https://arxiv.org/abs/2411.09009, write no logits to
device memory at all.
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
"""Factor for gradients of logits, so that none underflows in float16. They are at most 1; float16 ends at 65,504."""

Head = Callable[[Float[Array, "tokens width"], Any], Float[Array, "tokens vocab"]]
"""Function from hidden states and the head's weights to logits. An array that it closes over would get no gradient."""
Rule = Callable[[Float[Array, "tokens width"], Any, Int[Array, " tokens"], Any], Float[Array, ""]]
"""Function from hidden states, weights, labels and values without gradient to the loss in nats, summed over the tokens
whose label is not `IGNORE`. It may close over no array."""


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
    """Returns the sum of `-log p(label)`, in nats, over the tokens whose label is not `IGNORE`.

    The caller divides the sum once, by the number of counted tokens.

    Args:
        hidden: Hidden states.
        weights: Weights for `head(rows, weights)`: a pytree of floating-point arrays if `learned`, else of any form.
        labels: Labels.
        head: Function from rows and weights to logits.
        chunk: Tokens at a time; 0 for all.
        lift: Factor of the gradient of the logits before `head`'s backward pass, divided out afterwards. `LIFT` for a
            head that rounds the gradient to float16, which would lose values below 6e-8.
        platform: Platform that is compiled for. On an accelerator the gradient of the logits is written once
            (`nats_in_one_pass`).
        learned: Whether weights have a gradient. The gradient takes 4 bytes for each weight.
    """
    nats = each_nats if platform == "cpu" else nats_in_one_pass
    rule, learned_weights, fixed = _NatsOf(head, nats), weights if learned else None, None if learned else weights
    return chunked_sum(hidden, learned_weights, labels, rule=rule, fixed=fixed, chunk=chunk, lift=lift)


class _NatsOf(NamedTuple):
    """Cross-entropy as a `Rule`. The head's weights are `weights` if they are trained, else `fixed`."""

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
    """Returns the sum of `rule` over chunks of `chunk` tokens, for losses other than plain cross-entropy.

    `rule` receives `fixed` unchanged, like integers that it looks up. `skip` leaves out chunks in which every label is
    `IGNORE`: it pays off if few labels count, and their tokens precede all others.
    """
    tokens, _ = hidden.shape
    how = _How(rule, min(chunk, tokens) if chunk else tokens, lift, skip)
    return _summed(hidden, weights, labels, fixed, how)


def each_nats(logits: Float[Array, "tokens vocab"], labels: Int[Array, " tokens"]) -> Float[Array, " tokens"]:
    """Returns `-log p(label)` of each token; 0 if the label is `IGNORE`."""
    counted = labels != IGNORE
    picked = jnp.take_along_axis(logits, jnp.where(counted, labels, 0)[:, None], axis=-1)[:, 0]
    return jnp.where(counted, jax.nn.logsumexp(logits, axis=-1) - picked, 0.0)


@jax.custom_vjp
def nats_in_one_pass(logits: Float[Array, "tokens vocab"], labels: Int[Array, " tokens"]) -> Float[Array, " tokens"]:
    """Returns `each_nats` with an elementwise gradient: the probability, minus one for the label.

    The compiler fuses this gradient with the rounding to the operands of the head's products. So it is never in memory
    in float32, while the gradient of `each_nats` is written, scattered into and read again.
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
    """Returns `each_nats` of the head's logits, computed for `chunk` tokens at a time, for evaluation only."""
    tokens = labels.size

    def one_chunk(rows: tuple[Array, Array]) -> Array:
        hidden_rows, label_rows = rows
        return each_nats(head(hidden_rows, weights), label_rows)

    nats = jax.lax.map(one_chunk, _in_chunks(hidden, labels, min(chunk or tokens, tokens)))
    return _joined(nats[..., None], tokens)[:, 0]


class _How(NamedTuple):
    """Settings of `_summed`, as a hashable static argument for `custom_vjp`."""

    rule: Rule
    chunk: int
    lift: float
    skip: bool

    def where_counted(self, compute: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `compute`; with `skip`, a function that calls `otherwise` for chunks with only `IGNORE` labels."""
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
    """Returns the sum of losses, and the gradients of hidden states and weights.

    The gradients are multiplied by `how.lift` against underflow.
    """

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
    """Returns hidden states and labels as (chunks, tokens, ...).

    In a mesh a chunk has `chunk` tokens of every device, so that none is sent to another. A chunk of consecutive tokens
    would lie on one device, and would be sent to all.
    """
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
    """Reverses `_in_chunks` and removes its padding."""
    parts, (_, count, width) = _parts(tokens), rows.shape
    if parts == 1:
        return rows.reshape(-1, width)[:tokens]
    of_devices = rows.reshape(-1, parts, count // parts, width).swapaxes(0, 1).reshape(parts, -1, width)
    return by_rows(of_devices[:, : tokens // parts].reshape(tokens, width))


def _parts(tokens: int) -> int:
    """Returns the number of devices that split the tokens equally; 1 if they cannot."""
    parts = row_parts()
    return parts if tokens % parts == 0 else 1
