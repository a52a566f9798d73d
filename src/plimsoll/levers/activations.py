"""Activations in bfloat16: the residual stream and all that is kept for the backward pass take half the bytes.

With `precision="bfloat16"` alone, products round their operands and return float32, so that everything between two
products, and most of what the backward pass keeps, takes 4 bytes a number. With `activations="bfloat16"` products
return bfloat16 (they sum in float32 all the same), and what lies between them is in bfloat16 in memory: this is what
is meant by mixed precision on a GPU (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740). An operation on
single numbers is still computed in float32, within one fused pass over memory (`in_float32`): norms with their
statistics, rotary positions, gates, softmax and loss. Weights, their gradients and the optimizer's state are float32.

Nothing here has to be told the lever's value: a product returns the type of its first factor (`levers/precision.py`),
and so does everything else. A model only has to begin with `stream`. Leave it off where the chip computes in float32
anyway, and time it on a CPU: there, each conversion is an instruction.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from plimsoll.types import Compute


def stream(x: Array, compute: Compute) -> Array:
    """Returns what enters the first block, in the type of the residual stream."""
    return x.astype(compute.activations)


def in_float32(function: Callable[..., Array], x: Array, *others: Any) -> Array:
    """Returns `function` of arrays widened to float32, rounded to the type of the first.

    Args:
        function: Of arrays of float32 to one array: operations that the compiler can fuse into one pass.
        x: First argument; its type is the result's.
        others: Further arguments; those in bfloat16 are widened, too.
    """
    wide = [each.astype(jnp.float32) if each.dtype == jnp.bfloat16 else each for each in (x, *others)]
    return function(*wide).astype(x.dtype)
