"""Frozen weights in fewer bits: bfloat16, int8 or NF4. They have no gradient, so they are only read.

A kernel of (rows, cols) is cut into groups of 64 rows; each column of a group shares one bfloat16 scale. int8 keeps the
nearest of 255 equal steps, 1.03 bytes a weight; NF4 the nearest of 16 quantiles of the normal distribution, two to a
byte, 0.53. Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, section 3. NF4 codes equal those of bitsandbytes for
blocks of 64: they are chosen with the group's exact largest magnitude, and only the stored scale is rounded.

A weight is widened to the product's type at each use, in the forward pass and again in the backward pass. A large
kernel is widened in tiles of `TILE` elements. No activation is kept for a gradient of frozen weights.

Price: widening for every dot; on a CPU NF4 costs as much as a small dot. Leave it off if the weights fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from plimsoll.levers.offload import fetched, on_host
from plimsoll.levers.precision import Form
from plimsoll.levers.sharding import by_rows, in_mesh, on_every_device
from plimsoll.levers.weight_bits import as_bits, readable
from plimsoll.types import NORMS_AND_BIASES, Compute

GROUP = 64
"""Rows that share a scale, as in QLoRA."""
READ_BY_ROWS = "embedding"
"""Word in the path of a leaf whose rows are looked up. `stored` keeps at least 16 bits of each weight;
`--embedding-bits` may keep fewer."""
TILE = 2**23
"""Most elements of a kernel that are widened at a time: 16 MiB of bfloat16."""
SMALLEST = 4096
"""A leaf with fewer elements keeps its precision. Norms and biases of any size keep it, too, stacked or not."""

LEAST = 2.0**-126
"""Divisor for a group of zeros: the smallest normal float32, which no processor flushes to zero."""

FrozenBits = Literal[32, 16, 8, 4]


NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The 16 values of NF4, as published (Dettmers et al. 2023, appendix E): zero, and quantiles of N(0, 1) scaled to
[-1, 1], in equal steps of probability, 8 above zero and 7 below (equation 4)."""
NF4_BORDERS = (np.array(NF4_LEVELS[1:], np.float32) + np.array(NF4_LEVELS[:-1], np.float32)) / 2
"""Midpoints between neighbouring levels. A value equal to a midpoint is rounded to the lower level."""


@partial(jax.tree_util.register_dataclass, data_fields=["codes", "scales", "layer"], meta_fields=["bits", "rows"])
@dataclass(frozen=True)
class Packed:
    """A kernel in 8 or 4 bits, or a stack of kernels: the last two axes are rows and columns."""

    codes: Array
    """int8 of (..., groups x 64, cols), or uint8 of half as many rows, two codes a byte."""
    scales: Array
    """bfloat16 of (..., groups, cols): the largest magnitude of each group."""
    bits: Literal[8, 4] = field(default=8)
    rows: int = field(default=0)
    """Number of rows before padding to whole groups."""
    layer: Array | None = None
    """Index of one layer of a stack (`layers_of`), while codes and scales are those of all layers; None otherwise."""

    @property
    def shape(self) -> tuple[int, ...]:
        lead = self.scales.shape[(0 if self.layer is None else 1) : -2]
        return (*lead, self.rows, self.scales.shape[-1])

    @property
    def ndim(self) -> int:
        return len(self.shape)


def packed(kernel: Float[Array, "... rows cols"], bits: Literal[8, 4]) -> Packed:
    """Returns the kernel, quantised to the nearest codes. A group of zeros stays zero."""
    *lead, rows, cols = kernel.shape
    groups = -(-rows // GROUP)
    filled = jnp.pad(kernel.astype(jnp.float32), [(0, 0)] * len(lead) + [(0, groups * GROUP - rows), (0, 0)])
    grouped = filled.reshape(*lead, groups, GROUP, cols)
    largest = jnp.max(jnp.abs(grouped), axis=-2)
    scales = largest.astype(jnp.bfloat16)
    if bits == 8:
        scale = scales.astype(jnp.float32)[..., None, :]
        unit = grouped * (1 / jnp.where(scale > 0, scale, 1))
        codes = jnp.clip(jnp.round(unit * 127), -127, 127).astype(jnp.int8)
    else:
        unit = grouped * (1 / jnp.maximum(largest, LEAST))[..., None, :]  # as bitsandbytes rounds it
        codes = jnp.searchsorted(jnp.asarray(NF4_BORDERS), unit).astype(jnp.uint8)
        codes = codes[..., 0::2, :] | (codes[..., 1::2, :] << 4)
    return Packed(codes.reshape(*lead, -1, cols), scales, bits, rows)


def packed_rows(rows: Float[np.ndarray, "cols rows"], bits: Literal[8, 4]) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes and scales of `packed(rows.T, bits)`, transposed, equal to the bit, but computed in NumPy.

    JAX's first compilation would grow the process by tens of MiB, more than a small model takes.
    """
    filled = np.pad(rows.astype(np.float32), [(0, 0), (0, -rows.shape[1] % GROUP)])
    grouped = filled.reshape(len(rows), -1, GROUP)
    largest = np.max(np.abs(grouped), axis=-1, keepdims=True)
    scales = largest.astype(jnp.bfloat16)
    if bits == 8:
        scale = scales.astype(np.float32)
        grouped *= np.float32(1) / np.where(scale > 0, scale, np.float32(1))
        codes = np.clip(np.round(grouped * np.float32(127)), -127, 127).astype(np.int8)
    else:
        grouped *= np.float32(1) / np.maximum(largest, np.float32(LEAST))
        codes = np.zeros(grouped.shape, np.uint8)
        for border in NF4_BORDERS:
            codes += grouped > border
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return codes.reshape(len(rows), -1), scales[..., 0]


def widened(leaf: Any, dtype: Any = jnp.float32) -> Any:
    """Returns a frozen (not trained) weight as an ordinary array: dequantises it, or copies it from host memory.

    Read frozen weights through this function in a loss of your own, so that the plan may store them in 16, 8 or 4 bits.
    Call it inside the loop over layers, so that the weights of only one layer are in memory in full precision.

    Args:
        leaf: A leaf of `params["frozen"]`, stored as the plan says: int8 or NF4 codes with scales, or an array.
        dtype: Floating-point type of the result. Integer arrays keep their type.

    Returns:
        An array of the weight's own shape, (..., rows, columns).

    Example:
        >>> plimsoll.widened(jnp.ones((2, 3), jnp.bfloat16)).dtype
        dtype('float32')
    """
    return _widened(on_every_device(_one_layer(fetched(leaf))), dtype)


def _widened(leaf: Any, dtype: Any) -> Any:
    if not isinstance(leaf, Packed):
        leaf = readable(leaf)
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    *lead, groups, cols = leaf.scales.shape
    if leaf.bits == 8:
        unit = leaf.codes.reshape(*lead, groups, GROUP, cols).astype(jnp.float32) / 127
    else:
        pairs = leaf.codes.reshape(*lead, groups, GROUP // 2, 1, cols)
        codes = (pairs >> jnp.array([0, 4], jnp.uint8)[:, None]) & 15
        unit = jnp.asarray(NF4_LEVELS, jnp.float32).at[codes].get(mode="promise_in_bounds")
        unit = unit.reshape(*lead, groups, GROUP, cols)
    wide = (unit * leaf.scales.astype(jnp.float32)[..., None, :]).astype(dtype)
    return wide.reshape(*lead, groups * GROUP, cols)[..., : leaf.rows, :]


def _one_layer(kernel: Any) -> Any:
    """Returns a packed kernel with a `layer` cut out of its stack, and any other kernel unchanged."""
    if not isinstance(kernel, Packed) or kernel.layer is None:
        return kernel
    both = kernel.codes, kernel.scales
    codes, scales = (lax.dynamic_index_in_dim(x, kernel.layer, 0, keepdims=False) for x in both)
    return replace(kernel, codes=codes, scales=scales, layer=None)


def columns(kernel: Packed, at: Int[Array, ...]) -> Float[Array, "... rows"]:
    """Returns columns `at` of a packed kernel, each as a float32 row: a look-up in an embedding stored transposed."""
    flat = at.reshape(-1)
    codes, scales = (jnp.take(part, flat, axis=-1) for part in (kernel.codes, kernel.scales))
    found = _widened(replace(kernel, codes=codes, scales=scales), jnp.float32)
    return found.T.reshape(*at.shape, kernel.rows)


def layers_of(stacked: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns an argument for a scan over layers, and a function from a slice of it to that layer's weights.

    A scan would copy all codes of a layer wherever a loop over tiles reads them. So packed kernels are not sliced but
    closed over, with the layer's index. Kernels in the host's memory are sliced, and fetched a layer at a time.
    """
    leaves, tree = jax.tree.flatten(stacked, is_leaf=lambda leaf: isinstance(leaf, Packed))
    whole = [isinstance(leaf, Packed) and not on_host(leaf.codes) for leaf in leaves]
    cut = [None if stays else leaf for leaf, stays in zip(leaves, whole, strict=True)]
    layers = next(jax.tree.leaves(leaf)[0].shape[0] for leaf in leaves)

    def layer_of(numbered: tuple[Array, list[Any]]) -> Any:
        number, parts = numbered
        both = zip(leaves, whole, parts, strict=True)
        return tree.unflatten([replace(leaf, layer=number) if stays else part for leaf, stays, part in both])

    return (jnp.arange(layers), cut), layer_of


def stored(tree: Any, bits: FrozenBits) -> Any:
    """Returns the tree with every large floating-point leaf in `bits` bits; in bfloat16 if it cannot be packed."""

    def stored_leaf(path: Any, leaf: Array) -> Any:
        if bits == 32 or leaf.size < SMALLEST or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        words = {str(getattr(entry, "key", entry)) for entry in path}
        if words & NORMS_AND_BIASES:  # a stack of them looks like a matrix
            return leaf
        return leaf.astype(jnp.bfloat16) if bits == 16 or leaf.ndim < 2 or READ_BY_ROWS in words else packed(leaf, bits)

    return jax.tree_util.tree_map_with_path(stored_leaf, tree)


def frozen_dot(
    x: Float[Array, "... rows inner"],
    kernel: Array | Packed,
    compute: Form | Compute,
    *,
    gathered: bool = True,
) -> Float[Array, "... rows cols"]:
    """Returns `x @ kernel` in the type of `x`, with a gradient for `x` alone.

    If the kernel is split over devices, `gathered` gathers it. Without `gathered` devices exchange rows of `x` and the
    result, as for an output layer, whose kernel is far larger than these.
    """
    return _frozen(x, kernel, -2, Form.of(compute), gathered)


def frozen_dot_rows(
    x: Float[Array, "... rows inner"],
    table: Array | Packed,
    compute: Form | Compute,
    *,
    gathered: bool = True,
) -> Float[Array, "... rows cols"]:
    """Returns `x @ table.T`, as `frozen_dot` does: the output layer over frozen embeddings of (cols, inner)."""
    return _frozen(x, table, -1, Form.of(compute), gathered)


def _frozen(x: Array, kernel: Any, axis: int, form: Form, gathered: bool) -> Array:
    product: Any = _frozen_product(x.reshape(-1, x.shape[-1]), kernel, axis, form, gathered)
    return jnp.reshape(product, (*x.shape[:-1], -1))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _frozen_product(x: Array, kernel: Any, axis: int, form: Form, gathered: bool) -> Array:
    return over_tiles(x, kernel, axis, form, gathered=gathered)


def _forward(x: Array, kernel: Any, axis: int, form: Form, gathered: bool):
    return _frozen_product(x, kernel, axis, form, gathered), kernel


def _backward(axis: int, form: Form, gathered: bool, kernel: Any, grad: Array):
    return over_tiles(grad, kernel, -3 - axis, form, gathered=gathered), None  # a frozen kernel has no gradient


_frozen_product.defvjp(_forward, _backward)


def over_tiles(
    x: Float[Array, "rows inner"],
    kernel: Array | Packed,
    axis: int,
    form: Form,
    *,
    tile: int = TILE,
    gathered: bool = True,
) -> Float[Array, "rows cols"]:
    """Returns the product of `x` and a kernel in the type of `x`, summed over `axis` (-1 or -2) of the kernel.

    At most about `tile` elements of the kernel are widened at a time: tiles are cut along the other axis, so that no
    sum is split. A kernel that is split over devices is gathered in its stored form if it has tiles, or if `gathered`.
    """
    kernel, operand = fetched(kernel), form.operand(x)
    cut_axis = -3 - axis
    width, inner = kernel.shape[cut_axis], kernel.shape[axis]
    many = width if _read_as_it_is(kernel, operand.dtype) else _columns(width, most=tile // inner)
    if in_mesh() and (gathered or many < width):
        kernel, operand = on_every_device(_one_layer(kernel)), by_rows(operand)

    def product(part: Any) -> Array:
        return form.contract(operand, _widened(_one_layer(part), operand.dtype), b_axis=axis, to=x.dtype)

    if many == width:
        return product(kernel)

    def one_tile(start: Any, count: int, result: Array) -> Array:
        part = _cut(_cuttable(kernel, start), start, count, cut_axis)
        return lax.dynamic_update_slice_in_dim(result, product(part), start, 1)

    tiles, left = divmod(width, many)
    blank = jnp.zeros if in_mesh() else lax.empty  # the partitioner cannot split `empty`: all rows on each device
    result = by_rows(blank((x.shape[0], width), x.dtype))
    result = lax.fori_loop(0, tiles, lambda i, result: one_tile(i * many, many, result), result)
    return one_tile(width - left, left, result) if left else result


def _read_as_it_is(kernel: Any, dtype: Any) -> bool:
    return not isinstance(kernel, Packed) and readable(kernel).dtype == dtype


def _cuttable(kernel: Any, start: Any) -> Any:
    """Returns a bfloat16 kernel as its bits, since XLA for CPU widens a whole bfloat16 array to slice it.

    The barrier ties the bits to the tile at `start`. Without it the bits of the whole kernel would be copied before
    the loop.
    """
    if isinstance(kernel, Packed) or kernel.dtype != jnp.bfloat16:
        return kernel
    return as_bits(lax.optimization_barrier((kernel, start))[0])


def _columns(width: int, *, most: int) -> int:
    """Returns the number of columns of a tile: about `most` or less, whole groups of 64, ideally dividing `width`."""
    if width <= max(most, GROUP):
        return width
    groups = max(1, most // GROUP)
    evenly = (count * GROUP for count in range(groups, groups // 2, -1) if width % (count * GROUP) == 0)
    return next(evenly, groups * GROUP)


def _cut(kernel: Any, start: Any, count: int, axis: int) -> Any:
    """Returns `count` columns or rows of a kernel from index `start`: a multiple of 64 for rows of a packed kernel."""
    cut = lax.dynamic_slice_in_dim
    if not isinstance(kernel, Packed):
        return cut(kernel, start, count, axis)
    if axis == -1:
        return replace(kernel, codes=cut(kernel.codes, start, count, -1), scales=cut(kernel.scales, start, count, -1))
    groups, codes = -(-count // GROUP), kernel.codes.shape[-2] // kernel.scales.shape[-2]
    first = start // GROUP
    parts = cut(kernel.codes, first * codes, groups * codes, -2), cut(kernel.scales, first, groups, -2)
    return replace(kernel, codes=parts[0], scales=parts[1], rows=count)
