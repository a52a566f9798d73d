"""Cross-entropy over a vocabulary, a few rows of logits at a time.

Computed directly, `hidden @ head` has shape (tokens, vocab), and the backward pass needs it together with a
gradient of the same size. Here `chunk` rows are computed, reduced to a number and thrown away, then computed
again in the backward pass.

Price: one extra multiply by the head, four instead of three. Leave it off (`chunk=0`) when the logits are already
small; it then only costs time. Wijmans et al. 2024, https://arxiv.org/abs/2411.09009, never write even a chunk
of logits to device memory.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plimsoll.types import IGNORE

Head = Callable[[Float[Array, "tokens width"]], Float[Array, "tokens vocab"]]


def cross_entropy(hidden: Float[Array, "tokens width"], head: Head, labels: Int[Array, " tokens"]) -> Float[Array, ""]:
    """Sums `-log p(label)`, in nats, over the tokens whose label is not `IGNORE`."""
    logits = head(hidden)
    counted = labels != IGNORE
    picked = jnp.take_along_axis(logits, jnp.where(counted, labels, 0)[:, None], axis=-1)[:, 0]
    nats = jax.nn.logsumexp(logits, axis=-1) - picked
    return jnp.sum(jnp.where(counted, nats, 0.0))


def chunked_cross_entropy(
    hidden: Float[Array, "tokens width"], head: Head, labels: Int[Array, " tokens"], *, chunk: int
) -> Float[Array, ""]:
    """The same sum, `chunk` tokens at a time; `chunk=0` takes them all at once.

    A sum, because the mean of unequal chunks (or micro-batches) is not the mean over tokens: the caller
    divides by the number of counted tokens, once.
    """
    tokens, width = hidden.shape
    if not chunk or chunk >= tokens:
        return cross_entropy(hidden, head, labels)
    padding = -tokens % chunk
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, chunk, width)
    labels = jnp.pad(labels, (0, padding), constant_values=IGNORE).reshape(-1, chunk)

    @jax.checkpoint  # keep the rows for the backward pass, not their logits
    def add_chunk(total, rows):
        hidden_rows, label_rows = rows
        return total + cross_entropy(hidden_rows, head, label_rows), None

    total, _ = jax.lax.scan(add_chunk, jnp.float32(0), (hidden, labels))
    return total


def logits_bytes(*, tokens: int, chunk: int, vocab: int) -> int:
    """Float32 logits of a chunk and their gradient: what the planner expects before it has compiled."""
    return 2 * 4 * (min(chunk, tokens) if chunk else tokens) * vocab
