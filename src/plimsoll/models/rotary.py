"""Rotary positions in their rotate-half form. Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from plimsoll.levers.activations import in_float32

BASE = 10_000.0


def rotary_angles(length: int, head_width: int) -> Float[Array, "length half"]:
    """Returns the angle of every position and pair, in radians: position * base^(-2i / head_width)."""
    return angles_at(jnp.arange(length, dtype=jnp.float32), head_width)


def angles_at(
    positions: Float[Array, " length"] | Int[Array, " length"], head_width: int
) -> Float[Array, "length half"]:
    """Returns the angles of any positions."""
    # In double precision, then rounded, as published models have them.
    frequencies = (BASE ** (-np.arange(0, head_width, 2) / head_width)).astype(np.float32)
    return positions.astype(jnp.float32)[:, None] * frequencies


def rotate(
    x: Float[Array, "... length width"], angles: Float[Array, "length half"]
) -> Float[Array, "... length width"]:
    """Rotates the pairs (x[i], x[i + width/2]) by their angles, in float32; norms are kept."""

    def rotated(x: Array) -> Array:
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    return in_float32(rotated, x)
