"""Replacing the random initial weights of a state by given weights, like those of a published model.

Arrays are moved by `device_put` alone: the first compile of a process would need more memory than a small model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from plimsoll.levers.ema import Average
from plimsoll.levers.sharding import on_devices


def with_initial(state: Any, begin: Callable[[Any], Any], average: Average | None) -> dict[str, Any] | None:
    """Replaces random weights by given weights, and deletes the replaced arrays.

    Weights stored in 16 or 24 bits are passed to `begin` as bfloat16. Of 24 bits, the optimizer state has the lower 8,
    which stay random: they are less than half a unit in the last place of bfloat16. Shardings stay as they are.

    Args:
        state: State with random weights.
        begin: Function from random parameters to the run's initial parameters.
        average: EMA of the weights, if one is kept.

    Returns:
        New entries `params` and, with an average, `ema` of the state. None if `begin` changes nothing.
    """

    def as_number(leaf: Any) -> Any:
        return leaf if leaf.dtype != jnp.uint16 else _by_parts(lambda bits: bits.view(jnp.bfloat16), leaf)

    own = state["params"]
    random = own | {"trainable": jax.tree.map(as_number, own["trainable"])}
    params = begin(random)
    if params is random:
        return None
    del random
    whole = own_copies(params, own)
    if average is None:
        return {"params": whole}
    places = jax.tree.map(lambda leaf: leaf.sharding, state["ema"])
    for leaf in jax.tree.leaves(state["ema"]):
        leaf.delete()
    return {"params": whole, "ema": jax.tree.map(copied, average.start(whole["trainable"]), places)}


def own_copies(tree: Any, own: Any) -> Any:
    """Copies a tree's leaves into the storage format and the shardings of `own`.

    No two leaves of the result share memory, so all can be donated. A leaf that is in `own` already is not copied.
    When a leaf is copied, its original is deleted, and so is the leaf of `own` that the copy replaces.

    Args:
        tree: Parameters, as arrays of NumPy or JAX.
        own: Parameters of the state, with the same structure.
    """
    ids = {id(leaf) for leaf in jax.tree.leaves(tree)}

    def owned(leaf: Any, old: Any) -> Any:
        if leaf is old:
            return leaf
        copy = copied(_as_stored(leaf, old.dtype), old.sharding)
        for given in (leaf, *([] if id(old) in ids else [old])):
            if isinstance(given, jax.Array):
                given.delete()
        return copy

    return jax.tree.map(owned, tree, own)


def _as_stored(leaf: Any, dtype: Any) -> Any:
    """Converts a leaf to bfloat16 bits if the state stores weights as uint16; else returns the leaf unchanged."""
    if dtype != jnp.uint16 or leaf.dtype == jnp.uint16:
        return leaf
    return _by_parts(lambda numbers: numbers.astype(jnp.bfloat16, copy=False).view(np.uint16), leaf)


def _by_parts(change: Callable[[np.ndarray], np.ndarray], leaf: Any) -> Any:
    """Applies a NumPy function to an array. If the array is on several devices, each shard stays on its device."""
    if not isinstance(leaf, jax.Array) or leaf.sharding.num_devices == 1:
        return change(np.asarray(leaf))
    return _of_parts(lambda part: jax.device_put(change(np.asarray(part)), part.device), leaf)


def _of_parts(change: Callable[[jax.Array], jax.Array], leaf: jax.Array) -> jax.Array:
    """Applies a function to each shard of an array, and returns the array of the new shards."""
    parts = [change(part.data) for part in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def copied(leaf: Any, sharding: Sharding) -> jax.Array:
    """Returns a copy with the given sharding in memory that JAX allocated, so that it can be donated."""
    if not isinstance(leaf, jax.Array) or (leaf.is_fully_addressable and leaf.sharding != sharding):
        leaf = on_devices(np.asarray(leaf), sharding)  # JAX may share NumPy's memory if it is aligned
    elif leaf.sharding != sharding:
        leaf = jax.device_put(leaf, sharding)
    return jax.block_until_ready(_of_parts(lambda part: jax.device_put(part, may_alias=False), leaf))


def twice_at_first(params: Any) -> int:
    """Returns the bytes of parameters that `with_initial` holds twice at its peak.

    Args:
        params: Parameters of the state, as arrays or shapes.
    """

    def size(leaf: Any) -> int:
        return leaf.size * leaf.dtype.itemsize

    as_bits = sum(size(leaf) for leaf in jax.tree.leaves(params["trainable"]) if leaf.dtype == jnp.uint16)
    return as_bits + max(map(size, jax.tree.leaves(params)))
