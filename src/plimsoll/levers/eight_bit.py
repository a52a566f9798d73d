"""Optimizer state in 8 bits: a code per element, and one float32 scale per block of 64.

Adam's two moments take 8 bytes per parameter; here they take 2.125. Each update decodes a block, computes the new
moments in float32, and encodes them. Dettmers et al. 2022, https://arxiv.org/abs/2110.02861.

Their table of 256 values is not used, because looking it up does not vectorise in XLA. The codes are roots, as in
FlashOptim (2026, https://arxiv.org/abs/2602.23349). A mean is encoded as the sign and square root of |m| / scale, a
second moment as the fourth root of v / scale^2. Two choices are ours, both measured on the gradients of a language
model (notes, "8-bit state"):

A second moment is never encoded as zero unless it is zero. If magnitudes differ inside a block, a small one would
vanish, and its update would be divided by epsilon: thousands of times too large.

A second moment is rounded up or down at random. Rounded to the nearest it would stand still: with beta2 = 0.999 a step
changes it by a small part of a code. In matrices the changing scale of the block moves it anyway, and rounding at
random is a little noisier (updates off by 4.0 % instead of 3.3 % after 500 steps). If magnitudes differ by element,
rounding at random is 4.6 times more accurate (3.7 % instead of 17.1 %). Its mean is right in either case.

A block has 64 elements, because with 128 updates are off by 8 % more, to save 0.06 bytes per parameter. Leave it off
for embeddings, norms and small leaves: they are few, and moments of an embedding's row depend on how frequent its token
is. An update takes about twice as long as with float32 state, whose update only waits for memory (docs/results.md).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8, UInt32

BLOCK = 64
"""Consecutive elements, in row-major order, that share a scale. Only a leaf of whole blocks can be encoded."""
LANES = 16
"""Elements of a block that are compared at once: a vector of AVX-512."""
SMALLEST_SCALE = 1e-30
"""Smallest scale of a block with a nonzero element. 255^2 divided by this scale is still finite in float32."""

MEAN_STEPS = 127
ROOT_STEPS = 255
MEAN_ZERO = 128
"""Code of a first moment (mean) of zero."""


class Blocks(NamedTuple):
    """An encoded leaf. `codes` has the leaf's own shape, `scales` is flat: one for each block."""

    codes: UInt8[Array, "..."]
    scales: Float[Array, " blocks"]


def zeros(shape: tuple[int, ...]) -> Blocks:
    """Returns a moment before the first step. Its scales are zero, so its codes do not matter."""
    codes = jnp.zeros(shape, jnp.uint8)
    return Blocks(codes, jnp.zeros(codes.size // BLOCK, jnp.float32))


def encode_mean(mean: Float[Array, "blocks 64"]) -> tuple[UInt8[Array, "blocks 64"], Float[Array, " blocks"]]:
    """Returns codes and scales of a first moment. A block with a non-finite element has a non-finite scale."""
    magnitude = jnp.abs(mean)
    scales, inverse = _scales(magnitude, steps=MEAN_STEPS)
    return _nearest(MEAN_ZERO + jnp.copysign(jnp.sqrt(magnitude * inverse), mean)), scales


def decode_mean(codes: UInt8[Array, "blocks 64"], scales: Float[Array, " blocks"]) -> Float[Array, "blocks 64"]:
    root = (codes.astype(jnp.float32) - MEAN_ZERO) * (1 / MEAN_STEPS)
    return root * jnp.abs(root) * _spread(scales)


def encode_root(
    root: Float[Array, "blocks 64"], random: UInt32[Array, "blocks 64"]
) -> tuple[UInt8[Array, "blocks 64"], Float[Array, " blocks"]]:
    """Returns codes and scales of square roots of a second moment, which are never negative.

    Only zero has code 0. A root above zero gets at least code 1, whose value is scale / 255^2. The low 16 bits of
    `random` decide whether to round up or down.
    """
    scales, inverse = _scales(root, steps=ROOT_STEPS)
    below_half = (random & jnp.uint32(0xFFFF)).astype(jnp.float32) * 2**-16 - 0.5
    code = jnp.minimum(jnp.maximum(jnp.sqrt(root * inverse) + below_half, 1.0), ROOT_STEPS)
    return _nearest(jnp.where(root > 0, code, 0.0)), scales


def decode_root(codes: UInt8[Array, "blocks 64"], scales: Float[Array, " blocks"]) -> Float[Array, "blocks 64"]:
    half = codes.astype(jnp.float32) * (1 / ROOT_STEPS)
    return half * half * _spread(scales)


def _scales(magnitude: Array, *, steps: int) -> tuple[Array, Array]:
    """Returns each block's largest magnitude, and the factor that scales its elements to 0 ... steps^2."""
    parts = magnitude.reshape(-1, BLOCK // LANES, LANES)  # in vectors first: XLA for CPU reduces a row one by one
    largest = jnp.max(jnp.max(parts, axis=1), axis=-1)
    scales = jnp.where(largest == 0, 0.0, jnp.maximum(largest, SMALLEST_SCALE))
    return scales, _spread(jnp.where(scales == 0, 0.0, steps**2 / scales))


def _spread(scales: Array) -> Array:
    return jnp.broadcast_to(scales[:, None], (scales.shape[0], BLOCK))


def _nearest(x: Array) -> Array:
    """Returns the nearest integer from 0 to 255: the last byte of x + 2^23.

    XLA's own conversion checks for values that cannot occur here, and costs a tenth of the update.
    """
    return jax.lax.bitcast_convert_type(x + jnp.float32(2**23), jnp.uint32).astype(jnp.uint8)
