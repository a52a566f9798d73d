"""Rematerialisation: keeps fewer results of a block for the backward pass, which computes the others again.

`none` keeps all results. `dots` keeps the results of dots with weights, and recomputes norms, activations and attention
maps. `block` keeps only the block's input, at the price of one more forward pass, about a third more time. Chen et al.
2016, https://arxiv.org/abs/1604.06174.

`offload` is `block` with these inputs in the host's memory; the backward pass fetches them one by one. It is for
accelerators, whose compilers support it inside a scan in jax 0.10.2 (earlier ones did not:
https://github.com/jax-ml/jax/issues/23869).

A scan copies kept results into stacked arrays, so `scan_blocks` unrolls up to `unroll` layers. On a CPU it does so only
with `none`, since XLA for CPU removes the optimization barriers that protect the recomputation of unrolled layers (128
wide, 4 layers, `none` in bfloat16: 42 MiB of temporaries instead of 56, and 1.4 times the speed). On a GPU it does so
unless inputs go to the host (97.5M parameters on an H100: 6,927 MiB instead of 11,223, and 1.46 times the speed).

On a CPU a scan keeps 2-byte floats as integers. XLA for CPU has no 2-byte floats: to write one layer's part it would
convert the whole stack to float32 and back, and the backward pass would hold a float32 copy.
"""

import operator
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from plimsoll.levers.records.blocks import MOST_UNROLLED
from plimsoll.levers.weight_bits import opened
from plimsoll.types import Compute, Remat

DOT = "dot"
"""Checkpoint name of the results that `dots` keeps."""
INPUT = "block input"
"""Checkpoint name of a block's input, which `offload` sends to the host and a scan on a CPU keeps as bits."""
_BITS: ContextVar[bool] = ContextVar("bits", default=False)
"""True while tracing a block whose 2-byte floats are kept as integers."""


def rematerialised(
    block: Callable[..., Array], remat: Remat, *, scanned: bool = True, platform: str | None = None
) -> Callable[..., Array]:
    """Applies rematerialisation: in the backward pass the function recomputes intermediate results, to save memory.

    Wrap each layer of your own model with it inside a recipe's `loss(params, batch, compute)`, and pass `compute.remat`
    as `remat`: `compute` holds what the planner has chosen. It is `jax.checkpoint` with a policy.

    Args:
        block: Function to differentiate, like one layer of a model.
        remat: What is stored for the backward pass. "none": all intermediate results. "block": only the inputs.
            "offload": only the inputs, the first of them in host memory. "dots": the inputs, and results that
            `jax.ad_checkpoint.checkpoint_name` names "dot", as plimsoll's models do with matrix products.
        scanned: Whether `block` is the body of a `jax.lax.scan`. If False, the compiler is prevented from merging the
            recomputation with the first computation (`prevent_cse`), which would undo the saving.
        platform: Platform that is compiled for (`compute.platform`). With "cpu", a scan stores 2-byte floats as
            integers, which saves memory and time; the results are the same.

    Returns:
        A function with the same arguments and results as `block`.

    Example:
        >>> block = plimsoll.rematerialised(lambda x: jnp.sin(x) ** 2, "block", scanned=False)
        >>> float(jax.grad(block)(0.0))
        0.0
    """
    if remat == "none":
        return block
    if remat != "offload":
        names = [DOT] if remat == "dots" else []
        if scanned and platform == "cpu":
            block, names = _keeping_bits(block), [INPUT, *names]
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        return jax.checkpoint(block, policy=policy, prevent_cse=not scanned)
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def named(x: Array, *rest: Any) -> Array:
        return block(checkpoint_name(x, INPUT), *rest)

    return jax.checkpoint(named, policy=policy, prevent_cse=not scanned)


def unrolls(compute: Compute, *, layers: int) -> bool:
    """Returns True if a plan unrolls a stack of `layers` layers instead of scanning it."""
    keeps = compute.remat == "none" if compute.platform == "cpu" else compute.remat != "offload"
    return keeps and compute.platform in ("cpu", "gpu") and layers <= compute.lever("unroll", MOST_UNROLLED)


def scan_blocks(
    block: Callable[[Array, Any], Array], x: Array, stacked: Any, *, unrolled: bool, compute: Compute
) -> Array:
    """Applies `block(x, params)` for every layer of `stacked`, and returns the last output.

    `stacked` has leaves with a leading axis of layers. If `unrolled`, it may also be a list of layers.
    """
    if unrolled:
        step = rematerialised(block, compute.remat, scanned=False)
        for params in stacked if isinstance(stacked, list) else unstacked(stacked):
            x = step(x, params)
        return x
    step = rematerialised(lambda x, params: block(x, opened(params)), compute.remat, platform=compute.platform)
    x, _ = jax.lax.scan(lambda x, params: (step(x, params), None), x, stacked)
    return x


def beside(stacked: Any, values: Any) -> Any:
    """Returns an argument `stacked` for `scan_blocks` that pairs each layer's weights with its item of `values`."""
    if not isinstance(stacked, list):
        return stacked, values
    return list(zip(stacked, [None] * len(stacked) if values is None else values, strict=True))


def unstacked(stacked: Any) -> list[Any]:
    """Returns the parameters of each layer, cut out of the stacked arrays."""
    layers = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(layers)]


def restacked(layers: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def keep(x: Array) -> Array:
    """Marks the result of a matrix product with weights, so that remat "dots" stores it."""
    return _named_bits(DOT, x) if _BITS.get() else checkpoint_name(x, DOT)


def _keeping_bits(block: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `block`, changed so that its input and the results marked by `keep` are stored as bits."""

    def kept(x: Array, *rest: Any) -> Array:
        before = _BITS.set(True)
        try:
            return block(_named_bits(INPUT, x), *rest)
        finally:
            _BITS.reset(before)

    return kept


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _named_bits(name: str, x: Array) -> Array:
    """Returns `x` with a checkpoint name. If `x` is a 2-byte float, the name is given to its bits instead."""
    return _with_bits_named(name, x)


def _with_bits_named(name: str, x: Array) -> Array:
    if x.dtype not in (jnp.bfloat16, jnp.float16):
        return checkpoint_name(x, name)
    bits = checkpoint_name(jax.lax.bitcast_convert_type(x, jnp.uint16), name)
    return jax.lax.bitcast_convert_type(bits, x.dtype)


@_named_bits.defjvp
def _named_bits_jvp(name: str, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _with_bits_named(name, *primals), *tangents  # inlined: `jax.checkpoint` sees no names inside a call
