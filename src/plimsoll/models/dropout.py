"""Dropout by the keys of examples: what is dropped does not depend on how a batch is split."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropped(x: Float[Array, "batch ..."], keys: Array | None, place: int | Array, *, share: float) -> Array:
    """`x` with `share` of its numbers set to zero, and the others raised so that the mean stays.

    `keys`: one per example, or None for none dropped. `place` tells one place in the network from another.
    Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.
    """
    if keys is None or not share:
        return x
    left = 1 - share
    here = jax.vmap(lambda key: jax.random.fold_in(key, place))(keys)
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, left, x.shape[1:]))(here)
    return jnp.where(kept, x / left, 0)
