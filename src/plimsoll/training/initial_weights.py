"""A state that begins with weights that were given, as a published model's, in the form in which it is kept.

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
"""Bytes to which XLA's buffers are aligned on a CPU: NumPy's memory that is, JAX may take over as it is."""
COMPILING_BYTES = 32 * 2**20
"""What a process grows by, about, when it compiles something for the first time."""


def with_initial(state: Any, begin: Callable[[Any], Any], average: Average | None) -> dict[str, Any] | None:
    """The `params` of the state that `begin` makes of those drawn, and their `ema`; None where it leaves them alone.

    What was drawn and is not used any more is given back. Of weights in 24 bits the last 8, which the optimizer keeps,
    stay those drawn: less than half a step of the bfloat16 beside them.
    """
    kept = state["params"]["trainable"]
    drawn = state["params"] | {"trainable": jax.tree.map(_float32, kept)}
    params = begin(drawn)
    if params is drawn:
        return None
    ours = {id(leaf) for leaf in jax.tree.leaves(state["params"])}
    weights = jax.tree.map(_like, params["trainable"], kept)
    whole = jax.tree.map(lambda leaf: _owned(leaf, ours), params | {"trainable": weights})
    if average is None:
        return {"params": whole}
    return {"params": whole, "ema": jax.tree.map(copied, average.start(whole["trainable"]))}


def copied(leaf: Any) -> jax.Array:
    """In memory of JAX's own, which may be donated."""
    if leaf.nbytes > COMPILING_BYTES:
        return jax.block_until_ready(jnp.array(leaf, copy=True))
    leaf = np.asarray(leaf)
    room = np.empty(leaf.nbytes + 2 * ALIGNED, np.uint8)
    start = -room.ctypes.data % ALIGNED + leaf.itemsize  # where no buffer begins, so that it is not taken over
    place = room[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    place[...] = leaf
    return jax.block_until_ready(jax.device_put(place))


def _float32(leaf: Any) -> Any:
    return leaf if leaf.dtype != jnp.uint16 else np.asarray(leaf).view(jnp.bfloat16).astype(np.float32)


def _like(leaf: Any, kept: Any) -> Any:
    """In the form in which the state keeps it."""
    return leaf if kept.dtype != jnp.uint16 else np.asarray(leaf).astype(jnp.bfloat16).view(np.uint16)


def _owned(leaf: Any, ours: set[int]) -> Any:
    """A copy in the bytes of nobody else, since it will be donated; what it was copied from is given back at once."""
    if id(leaf) in ours:
        return leaf
    copy = copied(leaf)
    if isinstance(leaf, jax.Array):
        leaf.delete()
    return copy
