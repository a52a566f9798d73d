"""Dropout by the keys of examples: it does not depend on how a batch is split."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropped(x: Float[Array, "batch ..."], keys: Array | None, place: int | Array, *, share: float) -> Array:
    """Returns `x` with `share` of its numbers set to zero, and the others scaled so that the mean stays.

    Args:
        x: One row for each example.
        keys: One per example, or None for no dropout.
        place: Number of this dropout in the network.
        share: Share of the numbers.

    Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.
    """
    if keys is None or not share:
        return x
    left = 1 - share
    place_keys = jax.vmap(lambda key: jax.random.fold_in(key, place))(keys)
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, left, x.shape[1:]))(place_keys)
    return jnp.where(kept, x / left, 0)
