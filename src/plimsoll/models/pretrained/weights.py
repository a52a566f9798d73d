"""Published weights of a Llama or a Gemma, read straight into the form they are kept in: levers/frozen.py.

At no time is there more than that form and some MiB: a few rows of a tensor are read, turned over, rounded or packed,
and written into their place in the stack of layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.levers.frozen import FrozenBits, Packed, packed, stored
from plimsoll.levers.weight_bits import as_bits
from plimsoll.models.pretrained.model import KERNELS, NORMS, Pretrained, norm_start
from plimsoll.models.pretrained.safetensors_folder import Tensor
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.pretrained.tensors import EMBEDDING, HEAD, PIECE, checked, pieces_of
from plimsoll.types import NORMS_AND_BIASES, Compute

PACKED_PIECE = 2**16
"""The same where they are packed, which takes up to 32 times their bytes for a moment."""
ALIGNED = 64
"""Bytes to which a buffer must be aligned for JAX to take it on a CPU without a copy."""


def stored_like(shape: PretrainedShape, bits: FrozenBits) -> Any:
    """Shapes and types of what `load` returns; nothing is allocated."""
    model = Pretrained(shape, Compute())
    return jax.eval_shape(lambda: kept(model.init(jax.random.key(0)), bits))


def kept(params: dict, bits: FrozenBits) -> dict:
    """`levers.frozen.stored`, with the bits of what it has in bfloat16."""

    def one(leaf: Any) -> Any:
        return as_bits(leaf) if not isinstance(leaf, Packed) and leaf.dtype == jnp.bfloat16 else leaf

    return jax.tree.map(one, stored(params, bits), is_leaf=lambda leaf: isinstance(leaf, Packed))


def blank(shape: PretrainedShape) -> dict:
    """Blocks and last norm in the tree of `Pretrained`, before any weights are there: every layer passes on what it is
    given. Words are left out. Zeros are cheap to make in every form."""
    like = jax.eval_shape(Pretrained(shape, Compute()).init, jax.random.key(0))
    one = norm_start(shape)

    def leaf(path: Any, shape: Any) -> jax.Array:
        is_norm = {str(getattr(entry, "key", entry)) for entry in path} & NORMS_AND_BIASES
        return jnp.full(shape.shape, one if is_norm else 0.0, jnp.float32)

    return jax.tree_util.tree_map_with_path(leaf, {name: like[name] for name in ("blocks", "norm")})


def blank_kept(tree: dict, bits: FrozenBits) -> dict:
    """`kept` of what `blank` has made, without computing codes of zeros."""

    def one(leaf: Any, like: Any) -> Any:
        same = not isinstance(like, Packed) and like.dtype == leaf.dtype
        return leaf if same else jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), like)

    return jax.tree.map(one, tree, jax.eval_shape(lambda tree: kept(tree, bits), tree))


def bits_of(tree: Any) -> FrozenBits:
    """In which `kept` has kept a tree."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Packed))
    for leaf in leaves:
        if isinstance(leaf, Packed):
            return leaf.bits
    return 16 if any(leaf.dtype == jnp.uint16 for leaf in leaves) else 32


def load(
    folder: str | Path, shape: PretrainedShape, *, bits: FrozenBits | None = None, words: bool = True
) -> dict[str, Any]:
    """The folder's weights in the tree of `Pretrained`, each leaf as `kept` would make it.

    `bits` None: as in the file, where all of it is bfloat16, else float32. `words` False leaves out the embedding of
    tokens and the head: for a model that is given vectors. Raises DataError where the tensors are not those of the
    shape.
    """
    tensors = checked(folder, shape)
    if bits is None:
        bits = 16 if all(tensor.kind == "BF16" for tensor in tensors.values()) else 32
    like = stored_like(shape, bits)
    params: dict[str, Any] = {}
    if words:
        params["embedding"] = _filled(like["embedding"], [tensors[EMBEDDING]], turned=False)
    params["blocks"] = {name: {} for name in like["blocks"]}
    for ours, theirs in KERNELS.items():
        layers = [tensors[f"model.layers.{number}.{theirs}.weight"] for number in range(shape.layers)]
        params["blocks"][ours]["kernel"] = _filled(like["blocks"][ours]["kernel"], layers, turned=True)
    for ours, theirs in NORMS.items():
        layers = [tensors[f"model.layers.{number}.{theirs}.weight"] for number in range(shape.layers)]
        params["blocks"][ours]["scale"] = _filled(like["blocks"][ours]["scale"], layers, turned=False)
    params["norm"] = _filled(like["norm"], [tensors["model.norm.weight"]], turned=False)
    if words and not shape.tied:
        params["head"] = _filled(like["head"], [tensors[HEAD]], turned=True)
    return params


def _filled(like: Any, tensors: list[Tensor], *, turned: bool) -> Any:
    """A leaf: of one tensor, or of a tensor for each layer. `turned`: it is (in, out) here."""
    stacked = like.ndim > len(tensors[0].shape)
    if isinstance(like, Packed):
        codes, scales = (_buffer(part.shape, part.dtype) for part in (like.codes, like.scales))
        for number, tensor in enumerate(tensors):
            place = (number,) if stacked else ()
            for first, last, part in _packed_pieces(tensor, like):
                codes[place][:, first:last] = np.asarray(part.codes)[:, : last - first]
                scales[place][:, first:last] = np.asarray(part.scales)[:, : last - first]
        return Packed(_taken(codes), _taken(scales), like.bits, like.rows)
    whole = _buffer(like.shape, like.dtype)
    for number, tensor in enumerate(tensors):
        place = whole[number] if stacked else whole
        for first, last in pieces_of(tensor.shape, PIECE):
            numbers = _numbers(tensor, first, last)
            if like.dtype == jnp.uint16:
                numbers = numbers.astype(jnp.bfloat16).view(np.uint16)
            if turned:
                place[:, first:last] = numbers.T
            else:
                place[first:last] = numbers
    return _taken(whole)


def _packed_pieces(tensor: Tensor, like: Packed) -> Iterator[tuple[int, int, Packed]]:
    """First and last published row, which is a column here, and the codes of those and of what fills up the piece."""
    pieces = pieces_of(tensor.shape, PACKED_PIECE)
    together = np.zeros((pieces[0][1], tensor.shape[1]), np.float32)  # one shape, so that it is compiled once
    for first, last in pieces:
        together[: last - first] = _numbers(tensor, first, last)
        yield first, last, _packed_rows(together.copy(), like.bits)  # JAX may read it where it lies, and later


@partial(jax.jit, static_argnums=1)
def _packed_rows(rows: jax.Array, bits: Any) -> Packed:
    return packed(rows.T, bits)


def _numbers(tensor: Tensor, first: int, last: int) -> np.ndarray:
    rows = tensor.rows(first, last)
    return rows.view(jnp.bfloat16) if tensor.kind == "BF16" else rows


def _buffer(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Not touched yet, so not resident; JAX takes it over as it is."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED
    return room[start : start + size].view(dtype).reshape(shape)


def _taken(buffer: np.ndarray) -> jax.Array:
    return jax.device_put(buffer)
