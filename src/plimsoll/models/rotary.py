"""Rotary positions in rotate-half form. Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from plimsoll.levers.activations import in_float32
from plimsoll.models.shape import Rotary


def rotary_angles(
    positions: Int[Array, "... length"], head_width: int, rotary: Rotary
) -> Float[Array, "... length half"]:
    """Returns the angle for every position and pair of columns, in radians."""
    return positions.astype(jnp.float32)[..., None] * frequencies(rotary, head_width)


def frequencies(rotary: Rotary, head_width: int) -> Float32[np.ndarray, " half"]:
    """Returns the frequency of each pair of columns, in radians per position."""
    plain = rotary.theta ** (-np.arange(0, head_width, 2, dtype=np.float64) / head_width)
    if rotary.kind == "linear":
        plain = plain / rotary.factor
    elif rotary.kind == "llama3":
        # A frequency with a share of 1 is unchanged, with a share of 0 divided by the factor.
        rotations = rotary.original * plain / (2 * math.pi)
        share = np.clip((rotations - rotary.low) / (rotary.high - rotary.low), 0, 1)
        plain = share * plain + (1 - share) * plain / rotary.factor
    return plain.astype(np.float32)


def rotate(
    x: Float[Array, "... length width"], angles: Float[Array, "... length half"]
) -> Float[Array, "... length width"]:
    """Returns `x` with the pairs (x[i], x[i + width/2]) rotated by their angles, computed in float32."""

    def rotated(x: Array) -> Array:
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    return in_float32(rotated, x)
