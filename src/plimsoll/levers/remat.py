"""Rematerialisation: keep less of a block for the backward pass, and compute it again there.

`none` keeps everything; `dots` keeps the results of the weight dots and recomputes what lies between them
(norms, activations, attention maps); `block` keeps only the block's input, at the price of one more forward
pass, about a third more time. Chen et al. 2016, https://arxiv.org/abs/1604.06174.

On a CPU it works inside `lax.scan` only: XLA removes the barriers of unrolled layers there. A scan, in turn, copies
what it keeps into stacked arrays, so `scan_blocks` unrolls where nothing is recomputed (measured here at 128 x 4 in
bfloat16: 42 MiB of temporaries instead of 56, and 1.4 times the speed).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from plimsoll.types import Remat

MOST_UNROLLED = 24
"""Layers beyond which compile time (about 0.3 s a layer) outweighs what unrolling saves."""

DOT = "dot"
"""Name that models give to the results `dots` keeps."""


def rematerialised(block: Callable[..., Array], remat: Remat) -> Callable[..., Array]:
    """The same function, keeping for its backward pass only what `remat` says."""
    if remat == "none":
        return block
    policy = jax.checkpoint_policies.save_only_these_names(DOT) if remat == "dots" else None
    return jax.checkpoint(block, policy=policy, prevent_cse=False)


def scan_blocks(
    block: Callable[[Array, Any], Array], x: Array, stacked: Any, *, layers: int, remat: Remat, platform: str
) -> Array:
    """`block(x, params)` for every layer of `stacked`, whose leaves have a leading axis of `layers`."""
    unroll = layers if remat == "none" and platform == "cpu" and layers <= MOST_UNROLLED else 1
    step = rematerialised(block, remat)
    x, _ = jax.lax.scan(lambda x, params: (step(x, params), None), x, stacked, unroll=unroll)
    return x


def keep(x: Array) -> Array:
    """Marks the result of a weight dot: what `dots` keeps."""
    return checkpoint_name(x, DOT)
