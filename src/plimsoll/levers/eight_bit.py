"""Optimizer state in 8 bits: a code per element, and one float32 scale per block of 64.

Adam's two moments take 8 bytes per parameter; here they take 2.125. Each update decodes a block, computes in float32
with fresh moments, and encodes what is kept. Dettmers et al. 2022, https://arxiv.org/abs/2110.02861.

Not their table of 256 values: looking it up does not vectorise in XLA. The codes are roots, as in FlashOptim (2026,
https://arxiv.org/abs/2602.23349): of a mean, sign and square root of |m| / scale; of a second moment, the fourth root
of v / scale^2, so what is encoded is its root, by which an update is divided. Two choices are ours, both measured on
the gradients of a language model (notes, "8-bit state"):

A second moment is never encoded as zero unless it is zero. Where magnitudes differ inside a block, a small one would
vanish and its update be divided by epsilon: thousands of times too large.

It is rounded up or down at random. To the nearest, it stands still: with beta2 = 0.999 a step changes it by a small
part of a code. In matrices the block's scale carries it along, and rounding at random is a little noisier (updates off
by 4.0 % instead of 3.3 % after 500 steps); where magnitudes differ by element it is 4.6 times nearer (3.7 % instead of
17.1 %), and its mean is right everywhere.

Blocks of 64, because at 128 updates are off by 8 % more, for 0.06 bytes. Leave it off for embeddings, norms and small
leaves: they are few, and a row of an embedding is as large as its token is frequent. It costs time: about
twice that of an update over float32 state, which waits for memory (docs/results.md).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8, UInt32

BLOCK = 64
"""Consecutive elements, in row-major order, that share a scale. Only a leaf of whole blocks can be encoded."""
LANES = 16
"""Of a block, the elements that are compared at once: a vector of AVX-512."""
SMALLEST_SCALE = 1e-30
"""Of a block that is not zero, so that its inverse times 255^2 is finite."""

MEAN_STEPS = 127
ROOT_STEPS = 255
MEAN_ZERO = 128
"""The code of a mean of zero."""


class Blocks(NamedTuple):
    """An encoded leaf. `codes` has the leaf's own shape, `scales` is flat: one for each block."""

    codes: UInt8[Array, "..."]
    scales: Float[Array, " blocks"]


def zeros(shape: tuple[int, ...]) -> Blocks:
    """Returns a moment before the first step: scale zero, so the codes do not matter."""
    codes = jnp.zeros(shape, jnp.uint8)
    return Blocks(codes, jnp.zeros(codes.size // BLOCK, jnp.float32))


def encode_mean(mean: Float[Array, "blocks 64"]) -> tuple[UInt8[Array, "blocks 64"], Float[Array, " blocks"]]:
    """Returns codes and scales of a first moment. What is not finite shows in its block's scale."""
    magnitude = jnp.abs(mean)
    scales, inverse = _scales(magnitude, steps=MEAN_STEPS)
    return _nearest(MEAN_ZERO + jnp.copysign(jnp.sqrt(magnitude * inverse), mean)), scales


def decode_mean(codes: UInt8[Array, "blocks 64"], scales: Float[Array, " blocks"]) -> Float[Array, "blocks 64"]:
    root = (codes.astype(jnp.float32) - MEAN_ZERO) * (1 / MEAN_STEPS)
    return root * jnp.abs(root) * _spread(scales)


def encode_root(
    root: Float[Array, "blocks 64"], random: UInt32[Array, "blocks 64"]
) -> tuple[UInt8[Array, "blocks 64"], Float[Array, " blocks"]]:
    """Returns codes and scales of the square root of a second moment, which an update divides by; never negative.

    Code 0 for zero alone: what is above it gets at least code 1, whose value is scale / 255^2. Rounded up or down by
    the low 16 bits of `random`; the module says why.
    """
    scales, inverse = _scales(root, steps=ROOT_STEPS)
    below_half = (random & jnp.uint32(0xFFFF)).astype(jnp.float32) * 2**-16 - 0.5
    code = jnp.minimum(jnp.maximum(jnp.sqrt(root * inverse) + below_half, 1.0), ROOT_STEPS)
    return _nearest(jnp.where(root > 0, code, 0.0)), scales


def decode_root(codes: UInt8[Array, "blocks 64"], scales: Float[Array, " blocks"]) -> Float[Array, "blocks 64"]:
    half = codes.astype(jnp.float32) * (1 / ROOT_STEPS)
    return half * half * _spread(scales)


def _scales(magnitude: Array, *, steps: int) -> tuple[Array, Array]:
    """Returns each block's largest magnitude, and the factor that brings its elements between 0 and steps^2."""
    parts = magnitude.reshape(-1, BLOCK // LANES, LANES)  # whole vectors first: XLA for CPU goes along a row one by one
    largest = jnp.max(jnp.max(parts, axis=1), axis=-1)
    scales = jnp.where(largest == 0, 0.0, jnp.maximum(largest, SMALLEST_SCALE))
    return scales, _spread(jnp.where(scales == 0, 0.0, steps**2 / scales))


def _spread(scales: Array) -> Array:
    return jnp.broadcast_to(scales[:, None], (scales.shape[0], BLOCK))


def _nearest(x: Array) -> Array:
    """Returns the nearest whole number of 0 to 255, which is the last byte of x + 2^23. XLA's own conversion guards
    against what cannot be here, and costs a tenth of the update."""
    return jax.lax.bitcast_convert_type(x + jnp.float32(2**23), jnp.uint32).astype(jnp.uint8)
