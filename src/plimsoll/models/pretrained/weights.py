"""Reads published weights of a decoder directly into their stored form (levers/frozen.py).

Memory holds only the stored form and some MiB: a few rows of a tensor are read, transposed, rounded or quantised, and
written into the array of all layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.levers.frozen import FrozenBits, Packed, packed_rows, stored
from plimsoll.levers.sharding import aligned_empty, on_devices
from plimsoll.levers.weight_bits import as_bits
from plimsoll.models.decoder import Decoder
from plimsoll.models.pretrained.safetensors_folder import EMBEDDING, HEAD, NORM, PIECE, Tensor, checked, pieces_of
from plimsoll.models.shape import DecoderShape
from plimsoll.types import NORMS_AND_BIASES, Compute

PACKED_PIECE = 2**16
"""Elements that are quantised at a time."""


def stored_like(shape: DecoderShape, bits: FrozenBits) -> Any:
    """Returns shapes and types of the result of `load`, without allocating arrays."""
    decoder = Decoder(shape, Compute())
    return jax.eval_shape(lambda: kept(decoder.init(jax.random.key(0)), bits))


def kept(params: dict, bits: FrozenBits) -> dict:
    """Returns `levers.frozen.stored(params, bits)`, with bfloat16 stacks of layers as their bits (uint16).

    XLA for CPU can slice one layer from bits without converting the stack. Embedding and head stay bfloat16: a product
    reads all of them, and XLA for CPU would copy bits to convert them.
    """

    def with_bits(leaf: Any) -> Any:
        stacked = not isinstance(leaf, Packed) and leaf.dtype == jnp.bfloat16 and leaf.ndim > 2
        return as_bits(cast(jax.Array, leaf)) if stacked else leaf

    return jax.tree.map(with_bits, stored(params, bits), is_leaf=lambda leaf: isinstance(leaf, Packed))


def blank(shape: DecoderShape) -> dict:
    """Returns blocks and final norm of a `Decoder` with zero kernels and neutral norms: each layer returns its input.

    Embedding and head are left out.
    """
    like = jax.eval_shape(Decoder(shape, Compute()).init, jax.random.key(0))
    scale = shape.form.norm_start

    def leaf(path: Any, shape: Any) -> jax.Array:
        is_norm = {str(getattr(entry, "key", entry)) for entry in path} & NORMS_AND_BIASES
        return jnp.full(shape.shape, scale if is_norm else 0.0, jnp.float32)

    return jax.tree_util.tree_map_with_path(leaf, {name: like[name] for name in ("blocks", "norm")})


def blank_kept(tree: dict, bits: FrozenBits) -> dict:
    """Returns `kept(tree, bits)` for a `tree` from `blank`, but creates quantised zeros directly."""

    def blank_leaf(leaf: Any, like: Any) -> Any:
        same = not isinstance(like, Packed) and like.dtype == leaf.dtype
        return leaf if same else jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), like)

    return jax.tree.map(blank_leaf, tree, jax.eval_shape(lambda tree: kept(tree, bits), tree))


def load(
    folder: str | Path,
    shape: DecoderShape,
    *,
    bits: FrozenBits | None = None,
    words: bool = True,
    like: Any = None,
) -> dict[str, Any]:
    """Returns the folder's weights as parameters of `Decoder`, in the form that `kept` returns.

    Args:
        folder: Folder of a Hugging Face model.
        shape: Shape of the model.
        bits: Bits of the stored weights. None: 16 if all tensors in the files are bfloat16, else 32.
        words: Whether to read the token embedding and the head. A model whose inputs are vectors needs neither.
        like: Shapes, types and shardings of the returned arrays; None for the form that `bits` gives.

    Raises:
        DataError: The tensors do not match the shape.
    """
    tensors = checked(folder, shape)
    if bits is None:
        bits = 16 if all(tensor.kind == "BF16" for tensor in tensors.values()) else 32
    like = stored_like(shape, bits) if like is None else like
    params: dict[str, Any] = {}
    if words:
        params["embedding"] = _filled(like["embedding"], [tensors[EMBEDDING]], transposed=False)
    params["blocks"] = {name: {} for name in like["blocks"]}
    for (ours, leaf), (theirs, _) in shape.block_tensors().items():
        layers = [tensors[f"model.layers.{number}.{theirs}"] for number in range(shape.layers)]
        params["blocks"][ours][leaf] = _filled(like["blocks"][ours][leaf], layers, transposed=leaf == "kernel")
    params["norm"] = _filled(like["norm"], [tensors[NORM]], transposed=False)
    if words and not shape.tied:
        params["head"] = _filled(like["head"], [tensors[HEAD]], transposed=True)
    return params


def published_tensor(params: dict, shape: DecoderShape, name: str) -> Any:
    """Returns the tensor with a published name from parameters of `load`; (out, in) for a kernel."""
    if name == EMBEDDING:
        return params["embedding"]
    if name == HEAD:
        return params["head"].T
    if name == NORM:
        return params["norm"]
    _, _, layer, within = name.split(".", 3)
    tensors = shape.block_tensors()
    ours, leaf = next(place for place, (published, _) in tensors.items() if published == within)
    tensor = params["blocks"][ours][leaf][int(layer)]
    return tensor.T if leaf == "kernel" else tensor


def load_over(tree: dict[str, Any], folder: str | Path, shape: DecoderShape, *, words: bool = True) -> dict[str, Any]:
    """Returns the folder's weights with the shapes, types and devices of `tree`.

    The arrays of `tree` are deleted first, so that two copies are never in memory.
    """

    def like(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))

    form = jax.tree.map(like, tree)
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.delete()
    return load(folder, shape, words=words, like=form)


def _filled(like: Any, tensors: list[Tensor], *, transposed: bool) -> Any:
    """Returns a leaf, filled from one tensor, or from a tensor for each layer. `transposed` swaps the last two axes."""
    stacked = like.ndim > len(tensors[0].shape)
    if isinstance(like, Packed):
        return _filled_codes(like, tensors, stacked=stacked)
    whole = aligned_empty(like.shape, like.dtype)
    for number, tensor in enumerate(tensors):
        place = whole[number] if stacked else whole
        place = place.T if transposed else place
        for first, last in pieces_of(tensor.shape, PIECE):
            numbers = _numbers(tensor, first, last)
            if like.dtype == jnp.uint16:
                numbers = numbers.astype(jnp.bfloat16).view(np.uint16)
            place[first:last] = numbers
    return _placed(whole, like)


def _filled_codes(like: Packed, tensors: list[Tensor], *, stacked: bool) -> Packed:
    parts = [aligned_empty(part.shape, part.dtype) for part in (like.codes, like.scales)]
    for number, tensor in enumerate(tensors):
        places = [part[number] if stacked else part for part in parts]
        for first, last in pieces_of(tensor.shape, PACKED_PIECE):  # published rows are columns of our kernel
            packed = packed_rows(_numbers(tensor, first, last), like.bits)
            for place, rows in zip(places, packed, strict=True):
                place.T[first:last] = rows
    return Packed(_placed(parts[0], like.codes), _placed(parts[1], like.scales), like.bits, like.rows)


def _placed(values: np.ndarray, like: Any) -> jax.Array:
    """Returns an array with the sharding of `like`; without one, on the first device."""
    return jax.device_put(values) if like.sharding is None else on_devices(values, like.sharding)


def _numbers(tensor: Tensor, first: int, last: int) -> np.ndarray:
    rows = tensor.rows(first, last)
    return rows.view(jnp.bfloat16) if tensor.kind == "BF16" else rows
