"""Weights in 24 or 16 bits: the forward pass reads bfloat16, but an update can be smaller than a step of bfloat16.

At a learning rate of 1e-4 most updates are smaller than half a step of bfloat16 (2^-9 of the weight), so weights
rounded to the nearest bfloat16 would stand still. There are two solutions:

24 bits: bfloat16, and a signed byte beside the optimizer state with the next 8 bits of the float32 weight. 3 bytes per
weight, relative error 2^-16. The split is that of FlashOptim (2026, https://arxiv.org/abs/2602.23349), computed on the
bits, so that split and join are exact inverses.

16 bits: bfloat16 alone, rounded up or down at random so that the mean is right: stochastic rounding, Ozkara et al.
2025, https://arxiv.org/abs/2502.20566. 2 bytes per weight, and noise. The random bits are a hash of step, leaf and
element: they need no state, and are the same after a restart. Threefry takes longer than the whole update.

Leave it off if weights are not most of the bytes. Norms and biases stay float32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Int8, UInt16, UInt32

from plimsoll.types import ReadsInParts

NOT_A_NUMBER = 0x7FC0_0000
GOLDEN = 0x9E37_79B9
"""2^32 divided by the golden ratio: a factor that spreads small keys over all bits."""


def split(weights: Float[Array, "..."]) -> tuple[UInt16[Array, "..."], Int8[Array, "..."]]:
    """Splits float32 into the bits of the nearest bfloat16, and the signed rest in 256ths of a bfloat16 step.

    The weight is rounded to 24 bits, ties to even. NaN stays NaN, and an overflow becomes infinite.
    """
    bits = _bits(weights)
    even = (bits >> 8) & jnp.uint32(1)
    kept = (bits + jnp.uint32(0x7F) + even) >> 8
    high = (kept + jnp.uint32(0x80)) >> 8
    rest = lax.bitcast_convert_type(kept - (high << 8), jnp.int32)
    return high.astype(jnp.uint16), rest.astype(jnp.int8)


def join(high: UInt16[Array, "..."], rest: Int8[Array, "..."]) -> Float[Array, "..."]:
    """Reverses `split`: `split(join(high, rest))` is `(high, rest)`, to the bit."""
    kept = (high.astype(jnp.uint32) << 8) + lax.bitcast_convert_type(rest.astype(jnp.int32), jnp.uint32)
    return lax.bitcast_convert_type(kept << 8, jnp.float32)


def widen(high: UInt16[Array, "..."]) -> Float[Array, "..."]:
    """Converts the bits of bfloat16 to float32."""
    return lax.bitcast_convert_type(high.astype(jnp.uint32) << 16, jnp.float32)


def round_at_random(weights: Float[Array, "..."], random: UInt32[Array, "..."]) -> UInt16[Array, "..."]:
    """Rounds float32 up or down at random to the bits of a neighbouring bfloat16, so that the mean is the weight."""
    return ((_bits(weights) + (random & jnp.uint32(0xFFFF))) >> 16).astype(jnp.uint16)


def random_bits(key: UInt32[Array, ""], elements: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Returns 32 random bits for every element of a leaf, by Wellons' hash lowbias32, which has no measurable bias.

    https://nullprogram.com/blog/2018/07/31/
    """
    return _hash(elements ^ key)


def random_key(step: Array, leaf: int) -> UInt32[Array, ""]:
    """Returns the random key for a step and the leaf with index `leaf`."""
    return _hash(_hash(step.astype(jnp.uint32) + jnp.uint32(GOLDEN)) ^ jnp.uint32(leaf * GOLDEN % 2**32))


def as_bits(weights: Array) -> UInt16[Array, "..."]:
    """Returns the bits of a bfloat16 array, because XLA for CPU can update parts of integer arrays in place."""
    return lax.bitcast_convert_type(weights, jnp.uint16)


def as_bfloat16(bits: UInt16[Array, "..."]) -> Array:
    return lax.bitcast_convert_type(bits, jnp.bfloat16)


def readable(tree: Any) -> Any:
    """Returns weights as the forward pass reads them: uint16 bits as bfloat16, all other leaves unchanged."""
    return jax.tree.map(lambda leaf: as_bfloat16(leaf) if leaf.dtype == jnp.uint16 else leaf, tree)


class InParts(NamedTuple):
    """Weights that a model reads in parts: layers of a stack, rows of a table.

    To slice a bfloat16 array, XLA for CPU widens all of it to float32, and its gradient again for every part.
    """

    bits: UInt16[Array, "..."]
    gradient: Float[Array, "..."]
    """Array with respect to which the float32 gradient is computed. Its values are not read."""


def parts_of(task: Any) -> tuple[str, ...]:
    """Returns the names of the weights that a task (model and loss) reads in parts."""
    return task.in_parts if isinstance(task, ReadsInParts) else ()


def learned(stored: Any, in_parts: Sequence[str]) -> Any:
    """Returns weights to differentiate with `jax.grad`: readable ones, but zeros for stored bits in entries `in_parts`.

    Args:
        stored: Weights as they are stored; a dict if `in_parts` names entries.
        in_parts: Entries that the model reads by `opened` and `rows` (`types.ReadsInParts`).
    """

    def zeros(leaf: Array) -> Array:
        return jnp.zeros(leaf.shape, jnp.float32) if leaf.dtype == jnp.uint16 else leaf

    if not in_parts:
        return readable(stored)
    return {name: jax.tree.map(zeros, tree) if name in in_parts else readable(tree) for name, tree in stored.items()}


def read(learned: Any, stored: Any, in_parts: Sequence[str]) -> Any:
    """Returns the weights that the loss receives: `learned`, where the zeros of entries `in_parts` become `InParts`."""

    def both(gradient: Array, bits: Array) -> Array | InParts:
        return InParts(bits, gradient) if bits.dtype == jnp.uint16 else gradient

    if not in_parts:
        return learned
    return {
        name: jax.tree.map(both, tree, stored[name]) if name in in_parts else tree for name, tree in learned.items()
    }


def opened(params: Any) -> Any:
    """Returns a tree from `read`, or one of its layers, with every leaf as the forward pass reads it."""

    def opened_leaf(leaf: Any) -> Any:
        return _bfloat16(leaf.bits, leaf.gradient) if isinstance(leaf, InParts) else leaf

    return jax.tree.map(opened_leaf, params, is_leaf=lambda leaf: isinstance(leaf, InParts))


def rows(table: Any, ids: Int[Array, "..."]) -> Array:
    """Returns `table[ids]` as the forward pass reads it: float32 or bfloat16 of (..., width)."""
    return opened(jax.tree.map(lambda leaf: leaf[ids], table))


@jax.custom_vjp
def _bfloat16(bits: Array, gradient: Array) -> Array:
    return as_bfloat16(bits)


def _forward(bits: Array, gradient: Array) -> tuple[Array, tuple[int, ...]]:
    return as_bfloat16(bits), bits.shape


def _backward(shape: tuple[int, ...], flowing: Array) -> tuple[np.ndarray, Array]:
    return np.zeros(shape, jax.dtypes.float0), flowing.astype(jnp.float32)


_bfloat16.defvjp(_forward, _backward)


def _bits(weights: Array) -> Array:
    """Returns the bits of the weights as float32. All NaN get the same bits: rounding others up may change the sign."""
    return jnp.where(weights == weights, lax.bitcast_convert_type(weights, jnp.uint32), jnp.uint32(NOT_A_NUMBER))


def _hash(x: Array) -> Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB_352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846C_A68B)
    return x ^ (x >> 16)
