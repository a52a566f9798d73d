"""The norm of a whole gradient, with temporaries of constant size.

XLA for CPU sums a large array in windows of 32, and stores all squares first: for a leaf of 64 MiB another 64 MiB,
while the whole gradient is in memory. Here a loop adds the squares of one piece at a time to an array of partial sums.
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
"""Elements of a piece, and number of partial sums, which fit a core's L1 cache."""
LARGE, LANES_OF_LARGE = 2**22, 2**16
"""Number of elements from which a leaf is large, and number of partial sums for a large leaf. More sums have fewer
summands each, so less rounding."""


def global_norm(tree: Any) -> Float[Array, ""]:
    """Returns the float32 norm of a tree with float32 or bfloat16 leaves."""
    squares = jnp.float32(0)
    for leaf in jax.tree.leaves(tree):
        squares += _squares(leaf)
    return jnp.sqrt(squares)


def norms_of_parts(tree: Any, *, stacked: str | None) -> dict[str, Float[Array, ""]]:
    """Returns the norm of each entry of a tree, by names like `gradient_norm/embedding`.

    A list of layers, or the `stacked` entry, has a norm for each layer: `gradient_norm/blocks/0`.

    Args:
        tree: A gradient.
        stacked: Entry whose leaves have a leading axis of layers (`types.Stacks`).
    """
    squares: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        entry = jax.tree_util.keystr(path[:1], simple=True)
        if entry.partition("/")[0] == stacked:
            of_leaf = {f"{stacked}/{number}": layer for number, layer in enumerate(_squares_of_layers(leaf))}
        elif len(path) > 1 and isinstance(path[1], jax.tree_util.SequenceKey):
            of_leaf = {f"{entry}/{path[1].idx}": _squares(leaf)}
        else:
            of_leaf = {entry: _squares(leaf)}
        squares |= {name: squares.get(name, 0.0) + square for name, square in of_leaf.items()}
    return {f"gradient_norm/{name}": jnp.sqrt(square) for name, square in squares.items()}


def shrinking(norm: Float[Array, ""], most: float) -> Float[Array, ""]:
    """Returns the factor that scales the norm down to `most`; 1 if the norm is smaller."""
    return jnp.where(norm < most, 1.0, most / norm)


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """Returns a clip like `optax.clip_by_global_norm`, with this module's norm, and one factor for all elements.

    optax divides each element, and XLA would store the quotients, because they are used twice.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = shrinking(global_norm(updates), most)
        return jax.tree.map(lambda x: factor.astype(x.dtype) * x, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _squares(leaf: Array) -> Float[Array, ""]:
    """Returns the sum of a leaf's squares."""
    if _is_summed_at_once(leaf, leaf.size):
        return _at_once(leaf)
    return lax.platform_dependent(leaf, cpu=_in_pieces, default=_at_once)


def _squares_of_layers(leaf: Array) -> Float[Array, " layers"]:
    """Returns the sum of squares of each layer of a leaf."""
    size = leaf[0].size

    def at_once(leaf: Array) -> Float[Array, " layers"]:
        return jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=range(1, leaf.ndim))

    def in_pieces(leaf: Array) -> Float[Array, " layers"]:
        return lax.map(lambda layer: _in_pieces(leaf, layer * size, size), jnp.arange(leaf.shape[0]))

    if _is_summed_at_once(leaf, size):
        return at_once(leaf)
    return lax.platform_dependent(leaf, cpu=in_pieces, default=at_once)


def _is_summed_at_once(leaf: Array, size: int) -> bool:
    """Returns True if a sum over `size` elements needs no pieces: it is short, or the leaf is split over devices."""
    return in_mesh() or size < 2 * LANES


def _at_once(leaf: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.square(leaf.astype(jnp.float32)))


def _in_pieces(leaf: Array, first: Array | int = 0, size: int | None = None) -> Float[Array, ""]:
    """Returns the sum of squares of `size` elements of a leaf, from element `first` on; of all by default."""
    flat, narrow = leaf.reshape(-1), leaf.dtype == jnp.bfloat16
    size = flat.size if size is None else size
    if narrow:  # XLA would widen a bfloat16 array before the loop; it copies the bits, which are half as large
        flat = weight_bits.as_bits(flat)
    lanes = LANES_OF_LARGE if size >= LARGE else LANES
    whole = size // lanes

    def squares(start: Any, count: int) -> Array:
        values = lax.dynamic_slice_in_dim(flat, start, count)
        return jnp.square(weight_bits.widen(values) if narrow else values)

    def add(piece: Array, sums: Float[Array, " lanes"]) -> Float[Array, " lanes"]:
        return sums + squares(first + piece * lanes, lanes)

    total = jnp.sum(lax.fori_loop(0, whole, add, jnp.zeros(lanes, jnp.float32)))
    left = size - whole * lanes
    return total + jnp.sum(squares(first + whole * lanes, left)) if left else total
