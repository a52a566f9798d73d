"""Stablemax: a softmax whose exponential is replaced by a function that grows linearly.

s(x) = x + 1 for x >= 0 and 1 / (1 - x) below; p = s / sum(s). Prieto et al. 2025, "Grokking at the Edge of Numerical
Stability", https://arxiv.org/abs/2501.04697, section 4. The published models compute it in float64. log s is log1p(x),
or -log1p(-x) below zero, so a sum of logarithms in float32 is as good (tests/recipes/puzzles/test_stablemax.py).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def log_stablemax(logits: Float[Array, "... vocab"]) -> Float[Array, "... vocab"]:
    """Returns log p over the last axis."""
    # Not by `where` or `abs`: at exactly zero the two maxima have the right slope, a half each.
    log_s = jnp.log1p(jnp.maximum(logits, 0.0)) - jnp.log1p(jnp.maximum(-logits, 0.0))
    return log_s - jax.nn.logsumexp(log_s, axis=-1, keepdims=True)


def stablemax_cross_entropy(
    logits: Float[Array, "... vocab"], labels: Int[Array, "..."], *, ignored: int
) -> Float[Array, "..."]:
    """Returns -log p(label) in nats; 0 where the label is `ignored`."""
    valid = labels != ignored
    picked = jnp.take_along_axis(log_stablemax(logits), jnp.where(valid, labels, 0)[..., None], axis=-1)
    return jnp.where(valid, -picked[..., 0], 0.0)
