"""Dropout with one key per example, so that masks do not depend on how a batch is split."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropped(x: Float[Array, "batch ..."], keys: Array | None, place: int | Array, *, share: float) -> Array:
    """Returns `x` with `share` of its numbers set to zero, and the others scaled so that the mean stays.

    Args:
        x: Array with one row for each example.
        keys: One key per example, or None for no dropout.
        place: Index of this dropout layer in the network, for its own masks.
        share: Share of the numbers that become zero.

    Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.
    """
    if keys is None or not share:
        return x
    left = 1 - share
    place_keys = jax.vmap(lambda key: jax.random.fold_in(key, place))(keys)
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, left, x.shape[1:]))(place_keys)
    return jnp.where(kept, x / left, 0)
