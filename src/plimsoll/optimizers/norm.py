"""The norm of a whole gradient, in bytes that do not grow with it.

XLA for CPU sums a large array in windows of 32, and writes the squares out before it does: of a leaf of 64 MiB another
64 MiB, in the very moment when the whole gradient is there. Here they are summed into as many lanes as a piece has.
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

LANES = 2**16
"""Elements that are squared at a time: 256 KiB of sums, which stay in a core's cache."""


def global_norm(tree: Any) -> Float[Array, ""]:
    """The root of the sum of all squares, in float32, of leaves in float32 or bfloat16."""
    return jnp.sqrt(sum((_squares(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.float32(0)))


def shrinking(norm: Float[Array, ""], most: float) -> Float[Array, ""]:
    """What to multiply by so that the norm is `most`, where it is more."""
    return jnp.where(norm < most, 1.0, most / norm)


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm`, but for the norm, and by one factor: what is divided for each element would be
    written out before it is used twice."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = shrinking(global_norm(updates), most)
        return jax.tree.map(lambda x: factor.astype(x.dtype) * x, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _squares(leaf: Array) -> Float[Array, ""]:
    if in_mesh() or leaf.size < 2 * LANES:  # what is split over devices is summed where it lies
        return _at_once(leaf)
    return lax.platform_dependent(leaf, cpu=_in_pieces, default=_at_once)


def _at_once(leaf: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.square(leaf.astype(jnp.float32)))


def _in_pieces(leaf: Array) -> Float[Array, ""]:
    flat, narrow = leaf.reshape(-1), leaf.dtype == jnp.bfloat16
    if narrow:  # XLA would widen all of it before the loop; of its bits it takes a copy, half as large
        flat = weight_bits.as_bits(flat)
    whole = flat.size // LANES

    def add(piece: Array, sums: Float[Array, " lanes"]) -> Float[Array, " lanes"]:
        there = lax.dynamic_slice_in_dim(flat, piece * LANES, LANES)
        return sums + jnp.square(weight_bits.widen(there) if narrow else there)

    sums = lax.fori_loop(0, whole, add, jnp.zeros(LANES, jnp.float32))
    rest = flat[whole * LANES :]
    return jnp.sum(sums) + _at_once(weight_bits.widen(rest) if narrow else rest)
