"""The norm of a whole gradient, in bytes that do not grow with it.

XLA for CPU sums a large array in windows of 32, and writes the squares out first: for a leaf of 64 MiB another 64 MiB,
while the whole gradient is in memory. Here they are summed into as many lanes as a piece has.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from plimsoll.levers import weight_bits
from plimsoll.levers.sharding import in_mesh

LANES = 2**12
"""Elements that are squared at a time: a core's first cache holds their sums."""
LARGE, LANES_OF_LARGE = 2**22, 2**16
"""Elements from which a leaf is large, and has more lanes: fewer summands in each, and so less rounding."""


def global_norm(tree: Any) -> Float[Array, ""]:
    """Returns the root of the sum of all squares, in float32, of leaves in float32 or bfloat16."""
    squares = jnp.float32(0)
    for leaf in jax.tree.leaves(tree):
        if in_mesh() or leaf.size < 2 * LANES:  # a leaf split over devices is summed in place
            squares += _at_once(leaf)
        else:
            squares += lax.platform_dependent(leaf, cpu=_in_pieces, default=_at_once)
    return jnp.sqrt(squares)


def shrinking(norm: Float[Array, ""], most: float) -> Float[Array, ""]:
    """Returns the factor that brings the norm down to `most`, 1 where it is less."""
    return jnp.where(norm < most, 1.0, most / norm)


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """Returns `optax.clip_by_global_norm` with the norm of this module and a single factor.

    What is divided for each element would be written out before it is used twice.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = shrinking(global_norm(updates), most)
        return jax.tree.map(lambda x: factor.astype(x.dtype) * x, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _at_once(leaf: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.square(leaf.astype(jnp.float32)))


def _in_pieces(leaf: Array) -> Float[Array, ""]:
    flat, narrow = leaf.reshape(-1), leaf.dtype == jnp.bfloat16
    if narrow:  # XLA would widen all of it before the loop; of its bits it takes a copy, half as large
        flat = weight_bits.as_bits(flat)
    lanes = LANES_OF_LARGE if flat.size >= LARGE else LANES
    whole = flat.size // lanes

    def add(piece: Array, sums: Float[Array, " lanes"]) -> Float[Array, " lanes"]:
        values = lax.dynamic_slice_in_dim(flat, piece * lanes, lanes)
        return sums + jnp.square(weight_bits.widen(values) if narrow else values)

    sums = lax.fori_loop(0, whole, add, jnp.zeros(lanes, jnp.float32))
    rest = flat[whole * lanes :]
    return jnp.sum(sums) + _at_once(weight_bits.widen(rest) if narrow else rest)
