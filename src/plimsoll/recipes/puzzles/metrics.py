"""Loss and metrics of puzzles, in training and evaluation: right tokens, solved puzzles, and halting.

The loss of a puzzle is the mean stablemax cross-entropy of its tokens plus half the cross-entropy of the halting logit
with the target "all tokens right" (https://arxiv.org/abs/2510.04871; the published code has no loss for continuing).
"""

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from plimsoll.types import IGNORED_LABEL, LossSum, Metrics

HALT_WEIGHT = 0.5
"""Weight of the halting loss; that of the token loss is 1."""


def loss_and_metrics(
    logits: Float[Array, "batch length vocab"],
    q: Float[Array, " batch"],
    labels: Int[Array, "batch length"],
    steps: Int[Array, " batch"],
    *,
    halted: Bool[Array, " batch"],
    counted: Bool[Array, " batch"],
) -> tuple[LossSum, Metrics]:
    """Returns loss and metrics as sums over puzzles.

    Losses are over the puzzles where `counted` is True, other metrics over labelled puzzles where `halted` is True.
    `q` is the halting logits.
    """
    valid = labels != IGNORED_LABEL
    labelled = jnp.sum(valid, axis=-1, dtype=jnp.int32)
    tokens = jnp.maximum(labelled, 1).astype(jnp.float32)
    right = valid & (jnp.argmax(logits, axis=-1) == labels)
    solved = jnp.sum(right, axis=-1, dtype=jnp.int32) == labelled
    of_tokens = jnp.sum(stablemax_cross_entropy(logits, labels, ignored=IGNORED_LABEL), axis=-1) / tokens
    of_halting = optax.sigmoid_binary_cross_entropy(q, solved.astype(jnp.float32))
    evaluated = halted & (labelled > 0)

    def over(which: Array, values: Array) -> LossSum:
        summed = jnp.sum(jnp.where(which, values.astype(jnp.float32), 0.0))
        return LossSum(summed, jnp.sum(which, dtype=jnp.float32))

    metrics = {
        "accuracy": over(evaluated, jnp.sum(right, axis=-1, dtype=jnp.float32) / tokens),
        "exact_accuracy": over(evaluated, solved),
        "q_halt_accuracy": over(evaluated, (q >= 0) == solved),
        "supervision_steps": over(evaluated, steps),
        "token_loss": over(counted, of_tokens),
        "halt_loss": over(counted, of_halting),
    }
    return over(counted, of_tokens + HALT_WEIGHT * of_halting), metrics


def log_stablemax(logits: Float[Array, "... vocab"]) -> Float[Array, "... vocab"]:
    """Returns the logarithm of stablemax over the last axis: a softmax whose exponential is replaced by s.

    s(x) = x + 1 for x >= 0 and 1 / (1 - x) below; p = s / sum(s). Prieto et al. 2025, "Grokking at the Edge of
    Numerical Stability", https://arxiv.org/abs/2501.04697, section 4. The published models compute it in float64. Here
    float32 is as good, because log s is log1p(x), or -log1p(-x) below zero (tests/recipes/puzzles/test_stablemax.py).
    """
    # The slope at zero must be 1. Each `jnp.maximum` adds a half there; `where` or `abs` would not.
    log_s = jnp.log1p(jnp.maximum(logits, 0.0)) - jnp.log1p(jnp.maximum(-logits, 0.0))
    return log_s - jax.nn.logsumexp(log_s, axis=-1, keepdims=True)


def stablemax_cross_entropy(
    logits: Float[Array, "*any vocab"], labels: Int[Array, "*any"], *, ignored: int
) -> Float[Array, "*any"]:
    """Returns -log p(label) in nats; 0 for the label `ignored`."""
    valid = labels != ignored
    picked = jnp.take_along_axis(log_stablemax(logits), jnp.where(valid, labels, 0)[..., None], axis=-1)
    return jnp.where(valid, -picked[..., 0], 0.0)
