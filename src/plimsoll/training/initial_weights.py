"""A state whose initial weights are given, as those of a published model, in the form in which the state keeps them.

In NumPy and `device_put`: nothing small is compiled in the training process, which takes more than a small model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.levers.ema import Average

ALIGNED = 64
"""Alignment in bytes of XLA's buffers on a CPU: JAX may take over NumPy's memory that has it."""
COMPILING_BYTES = 32 * 2**20
"""Growth of a process, about, when it compiles something for the first time."""


def with_initial(state: Any, begin: Callable[[Any], Any], average: Average | None) -> dict[str, Any] | None:
    """Returns the `params` that `begin` makes of the random ones, and their `ema`; None where it leaves them alone.

    Random weights that are replaced are deleted. `begin` sees weights in 16 or 24 bits as bfloat16. The last 8 of 24,
    which the optimizer keeps, stay random: less than half a step of the bfloat16 beside them.
    """

    def as_number(leaf: Any) -> Any:
        return leaf if leaf.dtype != jnp.uint16 else np.asarray(leaf).view(jnp.bfloat16)

    own = state["params"]
    random = own | {"trainable": jax.tree.map(as_number, own["trainable"])}
    params = begin(random)
    if params is random:
        return None
    del random
    whole = own_copies(params, own)
    if average is None:
        return {"params": whole}
    return {"params": whole, "ema": jax.tree.map(copied, average.start(whole["trainable"]))}


def own_copies(tree: Any, own: Any) -> Any:
    """Returns the tree in the form of `own`, with leaves that share no bytes with others, since they will be donated.

    Leaves of `own` stay as they are. The originals of the others are deleted, and those of `own` that they replace.
    """
    ids = {id(leaf) for leaf in jax.tree.leaves(tree)}

    def owned(leaf: Any, old: Any) -> Any:
        if leaf is old:
            return leaf
        copy = copied(_as_stored(leaf, old.dtype))
        for given in (leaf, *([] if id(old) in ids else [old])):
            if isinstance(given, jax.Array):
                given.delete()
        return copy

    return jax.tree.map(owned, tree, own)


def _as_stored(leaf: Any, dtype: Any) -> Any:
    """Returns numbers as bits of bfloat16 where the state keeps those, else the leaf."""
    if dtype != jnp.uint16 or leaf.dtype == jnp.uint16:
        return leaf
    return np.asarray(leaf).astype(jnp.bfloat16, copy=False).view(np.uint16)


def copied(leaf: Any) -> jax.Array:
    """Returns a copy in memory of JAX's own, which may be donated."""
    if leaf.nbytes > COMPILING_BYTES:
        return jax.block_until_ready(jnp.array(leaf, copy=True))
    leaf = np.asarray(leaf)
    room = np.empty(leaf.nbytes + 2 * ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED + leaf.itemsize  # where no buffer begins, so that it is not taken over
    copy = room[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    copy[...] = leaf
    return jax.block_until_ready(jax.device_put(copy))
