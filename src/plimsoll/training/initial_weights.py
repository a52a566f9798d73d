"""A state whose initial weights are given, as those of a published model, in the form in which the state keeps them.

By `device_put` alone: a process that compiles for the first time grows by more than a small model takes.
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
    """Returns the `params` that `begin` makes of the random ones, and their `ema`; None where it leaves them alone.

    Random weights that are replaced are deleted. `begin` sees weights in 16 or 24 bits as bfloat16. The last 8 of 24,
    which the optimizer keeps, stay random: less than half a step of the bfloat16 beside them. Each device of several
    gets only what it held of the random ones.
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
    """Returns the tree in the form of `own` and on its devices; no leaf shares bytes with another: all will be donated.

    Leaves of `own` stay as they are. The originals of the others are deleted, and those of `own` that they replace.
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
    """Returns numbers as bits of bfloat16 where the state keeps those, else the leaf."""
    if dtype != jnp.uint16 or leaf.dtype == jnp.uint16:
        return leaf
    return _by_parts(lambda numbers: numbers.astype(jnp.bfloat16, copy=False).view(np.uint16), leaf)


def _by_parts(change: Callable[[np.ndarray], np.ndarray], leaf: Any) -> Any:
    """Returns an array changed in NumPy; of one on several devices, what each device holds, which stays there."""
    if not isinstance(leaf, jax.Array) or leaf.sharding.num_devices == 1:
        return change(np.asarray(leaf))
    return _of_parts(lambda part: jax.device_put(change(np.asarray(part)), part.device), leaf)


def _of_parts(change: Callable[[jax.Array], jax.Array], leaf: jax.Array) -> jax.Array:
    parts = [change(part.data) for part in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def copied(leaf: Any, sharding: Sharding) -> jax.Array:
    """Returns a copy in memory of JAX's own, which may be donated, of which each device gets its part alone."""
    if not isinstance(leaf, jax.Array) or (leaf.is_fully_addressable and leaf.sharding != sharding):
        leaf = on_devices(np.asarray(leaf), sharding)  # memory of NumPy's, which JAX takes over where it is aligned
    elif leaf.sharding != sharding:
        leaf = jax.device_put(leaf, sharding)
    return jax.block_until_ready(_of_parts(lambda part: jax.device_put(part, may_alias=False), leaf))


def twice_at_first(params: Any) -> int:
    """Returns the bytes of such parameters (shapes are enough) that `with_initial` holds twice for a moment."""

    def size(leaf: Any) -> int:
        return leaf.size * leaf.dtype.itemsize

    as_bits = sum(size(leaf) for leaf in jax.tree.leaves(params["trainable"]) if leaf.dtype == jnp.uint16)
    return as_bits + max(map(size, jax.tree.leaves(params)))
