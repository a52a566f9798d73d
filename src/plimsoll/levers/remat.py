"""Rematerialisation: keep less of a block for the backward pass, and compute it again there.

`none` keeps everything; `dots` keeps the results of the weight dots and recomputes what lies between them
(norms, activations, attention maps); `block` keeps only the block's input, at the price of one more forward
pass, about a third more time. Chen et al. 2016, https://arxiv.org/abs/1604.06174.

`offload` is `block` with those inputs in the host's memory, from where the backward pass fetches one after the other.
It is for accelerators, whose compilers do it inside a scan in jax 0.10.2 (once they did not:
https://github.com/jax-ml/jax/issues/23869).

On a CPU it works inside `lax.scan` only: XLA removes the barriers of unrolled layers there. A scan, in turn, copies
what it keeps into stacked arrays, so `scan_blocks` unrolls where nothing is recomputed (measured here at 128 x 4 in
bfloat16: 42 MiB of temporaries instead of 56, and 1.4 times the speed).
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from plimsoll.levers.weight_bits import opened
from plimsoll.types import Remat

MOST_UNROLLED = 24
"""Layers beyond which compile time (about 0.3 s a layer) outweighs what unrolling saves."""

DOT = "dot"
"""Name that models give to the results `dots` keeps."""
INPUT = "block input"
"""Name of what `offload` sends to the host."""


def rematerialised(block: Callable[..., Array], remat: Remat) -> Callable[..., Array]:
    """Returns the same function, keeping for its backward pass only what `remat` says."""
    if remat == "none":
        return block
    if remat != "offload":
        policy = jax.checkpoint_policies.save_only_these_names(DOT) if remat == "dots" else None
        return jax.checkpoint(block, policy=policy, prevent_cse=False)
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def named(x: Array, *rest: Any) -> Array:
        return block(checkpoint_name(x, INPUT), *rest)

    return jax.checkpoint(named, policy=policy, prevent_cse=False)


def unrolls(*, layers: int, remat: Remat, platform: str) -> bool:
    """Returns whether `scan_blocks` applies the layers one after another, without a scan."""
    return remat == "none" and platform == "cpu" and layers <= MOST_UNROLLED


def scan_blocks(
    block: Callable[[Array, Any], Array], x: Array, stacked: Any, *, layers: int, remat: Remat, platform: str
) -> Array:
    """Applies `block(x, params)` for every layer of `stacked`: a list, or leaves with a leading axis of layers."""
    if unrolls(layers=layers, remat=remat, platform=platform):
        for params in stacked if isinstance(stacked, list) else unstacked(stacked, layers):
            x = block(x, params)
        return x
    step = rematerialised(lambda x, params: block(x, opened(params)), remat)
    x, _ = jax.lax.scan(lambda x, params: (step(x, params), None), x, stacked)
    return x


def unstacked(stacked: Any, layers: int) -> list[Any]:
    """Returns the parameters of each layer, cut out of the stacked arrays."""
    return [jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(layers)]


def restacked(layers: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def keep(x: Array) -> Array:
    """Marks the result of a weight dot: what `dots` keeps."""
    return checkpoint_name(x, DOT)
