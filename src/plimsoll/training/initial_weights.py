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

    Random weights that are not used any more are deleted. Of weights in 24 bits the last 8, which the optimizer keeps,
    stay random: less than half a step of the bfloat16 beside them.
    """

    def as_float32(leaf: Any) -> Any:
        return leaf if leaf.dtype != jnp.uint16 else np.asarray(leaf).view(jnp.bfloat16).astype(np.float32)

    def as_stored(leaf: Any, stored: Any) -> Any:
        return leaf if stored.dtype != jnp.uint16 else np.asarray(leaf).astype(jnp.bfloat16).view(np.uint16)

    stored = state["params"]["trainable"]
    random = state["params"] | {"trainable": jax.tree.map(as_float32, stored)}
    params = begin(random)
    if params is random:
        return None
    weights = jax.tree.map(as_stored, params["trainable"], stored)
    whole = own_copies(params | {"trainable": weights}, state["params"])
    if average is None:
        return {"params": whole}
    return {"params": whole, "ema": jax.tree.map(copied, average.start(whole["trainable"]))}


def own_copies(tree: Any, own: Any) -> Any:
    """Returns the tree with leaves that share no bytes with others, since they will be donated.

    Leaves of `own` stay as they are; the originals of the others are deleted.
    """
    ids = {id(leaf) for leaf in jax.tree.leaves(own)}

    def owned(leaf: Any) -> Any:
        if id(leaf) in ids:
            return leaf
        copy = copied(leaf)
        if isinstance(leaf, jax.Array):
            leaf.delete()
        return copy

    return jax.tree.map(owned, tree)


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
