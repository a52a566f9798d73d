"""Frozen weights in fewer bits: bfloat16, int8 or NF4. They take no gradient, so they need no more than to be read.

A kernel of (rows, cols) is cut into groups of 64 rows; a group of a column shares one scale, a bfloat16. int8 keeps
the nearest of 255 equal steps, 1.03 bytes a weight; NF4 the nearest of 16 quantiles of the normal distribution, two
to a byte, 0.53. Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, section 3. A weight is widened where it is
used, in the forward pass and again in the backward pass, and no activation is kept for a gradient that nobody wants.

Price: widening, for every dot; on a CPU NF4 costs as much as a small dot does. Leave it off where the weights fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from plimsoll.levers.offload import fetched
from plimsoll.levers.precision import Form, Precision
from plimsoll.levers.weight_bits import readable
from plimsoll.types import NORMS_AND_BIASES

GROUP = 64
"""Rows that share a scale, as in QLoRA."""
READ_BY_ROWS = "embedding"
"""A leaf on whose path this word stands is looked up, not multiplied: at least 16 bits."""
SMALLEST = 4096
"""Elements below which a leaf keeps its precision. Norms and biases keep it at any size, stacked or not."""

FrozenBits = Literal[32, 16, 8, 4]


def nf4_levels() -> tuple[float, ...]:
    """Returns the 16 values of NF4: zero, and quantiles of N(0, 1) scaled to [-1, 1].

    They are in equal steps of probability, 8 above zero and 7 below; the outermost probability is the mean of 1 - 1/30
    and 1 - 1/32. Dettmers et al. 2023, equation 4.
    """
    outermost = (2 - 1 / 30 - 1 / 32) / 2
    normal = NormalDist()
    above = [normal.inv_cdf(p) for p in np.linspace(outermost, 0.5, 9)[:-1]]
    below = [-normal.inv_cdf(p) for p in np.linspace(outermost, 0.5, 8)[:-1]]
    largest = above[0]
    return tuple(sorted(value / largest for value in [*above, 0.0, *below]))


@partial(jax.tree_util.register_dataclass, data_fields=["codes", "scales"], meta_fields=["bits", "rows"])
@dataclass(frozen=True)
class Packed:
    """A kernel in 8 or 4 bits. It may be stacked: what stands before the last two axes is kept."""

    codes: Array
    """int8 of (..., groups x 64, cols), or uint8 of half as many rows, two codes a byte."""
    scales: Array
    """bfloat16 of (..., groups, cols): what the largest of the group was."""
    bits: Literal[8, 4] = field(default=8)
    rows: int = field(default=0)
    """Before they were filled up to whole groups."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.scales.shape[:-2], self.rows, self.scales.shape[-1])

    @property
    def ndim(self) -> int:
        return self.scales.ndim


def packed(kernel: Float[Array, "... rows cols"], bits: Literal[8, 4]) -> Packed:
    """Returns the kernel as the nearest codes; a group of zeros stays zero."""
    *lead, rows, cols = kernel.shape
    groups = -(-rows // GROUP)
    filled = jnp.pad(kernel.astype(jnp.float32), [(0, 0)] * len(lead) + [(0, groups * GROUP - rows), (0, 0)])
    grouped = filled.reshape(*lead, groups, GROUP, cols)
    scales = jnp.max(jnp.abs(grouped), axis=-2).astype(jnp.bfloat16)
    scale = scales.astype(jnp.float32)[..., None, :]
    unit = grouped / jnp.where(scale > 0, scale, 1)
    if bits == 8:
        codes = jnp.clip(jnp.round(unit * 127), -127, 127).astype(jnp.int8)
    else:
        levels = np.array(nf4_levels(), np.float32)
        codes = jnp.searchsorted(jnp.asarray((levels[1:] + levels[:-1]) / 2), unit).astype(jnp.uint8)
        codes = codes[..., 0::2, :] | (codes[..., 1::2, :] << 4)
    return Packed(codes.reshape(*lead, -1, cols), scales, bits, rows)


def widened(leaf: Any, dtype: Any = jnp.float32) -> Any:
    """Returns an array of (..., rows, cols) from a packed leaf, from the bits of bfloat16, or from an array as it is.

    Integers keep their type.

    What lies in the host's memory is copied to the device: widen one layer at a time, inside the loop over them.
    """
    leaf = fetched(leaf)
    if not isinstance(leaf, Packed):
        leaf = readable(leaf)
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    *lead, groups, cols = leaf.scales.shape
    if leaf.bits == 8:
        unit = leaf.codes.reshape(*lead, groups, GROUP, cols).astype(jnp.float32) / 127
    else:
        pairs = leaf.codes.reshape(*lead, groups, GROUP // 2, cols)
        both = jnp.stack([pairs & 15, pairs >> 4], axis=-2)
        unit = jnp.asarray(nf4_levels(), jnp.float32)[both].reshape(*lead, groups, GROUP, cols)
    wide = (unit * leaf.scales.astype(jnp.float32)[..., None, :]).astype(dtype)
    return wide.reshape(*lead, groups * GROUP, cols)[..., : leaf.rows, :]


def stored(tree: Any, bits: FrozenBits) -> Any:
    """Returns every large floating-point leaf in so many bits, and in bfloat16 what cannot be packed."""

    def stored_leaf(path: Any, leaf: Array) -> Any:
        if bits == 32 or leaf.size < SMALLEST or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        words = {str(getattr(entry, "key", entry)) for entry in path}
        if words & NORMS_AND_BIASES:  # a stack of them looks like a matrix
            return leaf
        return leaf.astype(jnp.bfloat16) if bits == 16 or leaf.ndim < 2 or READ_BY_ROWS in words else packed(leaf, bits)

    return jax.tree_util.tree_map_with_path(stored_leaf, tree)


def frozen_dot(
    x: Float[Array, "... rows inner"], kernel: Array | Packed, *, precision: Precision, platform: str
) -> Float[Array, "... rows cols"]:
    """Returns `x @ kernel` in the type of `x`, with a gradient for `x` alone."""
    rows = x.reshape(-1, x.shape[-1])
    product: Any = _frozen_product(rows, kernel, Form(precision, platform))
    return jnp.reshape(product, (*x.shape[:-1], kernel.shape[-1]))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _frozen_product(x: Array, kernel: Any, form: Form) -> Array:
    return form.contract(form.operand(x), form.operand(widened(kernel)), b_axis=-2, to=x.dtype)


def _forward(x: Array, kernel: Any, form: Form):
    return _frozen_product(x, kernel, form), kernel


def _backward(form: Form, kernel: Any, grad: Array):
    grad_x = form.contract(form.operand(grad), form.operand(widened(kernel)), b_axis=-1, to=grad.dtype)
    return grad_x, None  # of a kernel that is frozen


_frozen_product.defvjp(_forward, _backward)
