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

import jax
import jax.numpy as jnp
from jax import Array

from plimsoll.types import Compute


def stream(x: Array, compute: Compute) -> Array:
    """Returns what enters the first block, in the type of the residual stream."""
    return x.astype(compute.activations)


def in_float32(function: Callable[..., Array], x: Array, *others: Any) -> Array:
    """Returns `function` of arrays widened to float32, rounded to the type of the first.

    Where that is bfloat16, the backward pass keeps the arguments as they are, and nothing in float32.

    Args:
        function: Of arrays of float32 to one array: operations that the compiler can fuse into one pass.
        x: First argument; its type is the result's.
        others: Further arguments; those in bfloat16 are widened, too.
    """

    def rounded(*arguments: Array) -> Array:
        wide = [each.astype(jnp.float32) if each.dtype == jnp.bfloat16 else each for each in arguments]
        return function(*wide).astype(x.dtype)

    return (jax.checkpoint(rounded, prevent_cse=False) if x.dtype == jnp.bfloat16 else rounded)(x, *others)


def swiglu(gate: Array, up: Array) -> Array:
    """Returns silu(gate) * up (Shazeer 2020, https://arxiv.org/abs/2002.05202), in the type of both."""
    return jax.nn.silu(gate) * up if gate.dtype == jnp.float32 else _rounded_swiglu(gate, up)


@jax.custom_vjp
def _rounded_swiglu(gate: Array, up: Array) -> Array:
    return in_float32(lambda gate, up: jax.nn.silu(gate) * up, gate, up)


def _swiglu_forward(gate: Array, up: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rounded_swiglu(gate, up), (gate, up)


def _swiglu_backward(kept: tuple[Array, Array], towards: Array) -> tuple[Array, Array]:
    """Returns the gradients, with the sigmoid computed again, so that nothing is kept of it in float32.

    The compiler for CPUs has to be kept from two things, and drops barriers: from finding the sigmoid of the forward
    pass to be the same number, by a tanh, and from computing it long before it is needed, by `0 * towards`.
    """
    gate, up, towards = (x.astype(jnp.float32) for x in (*kept, towards))
    sigmoid = 0.5 + 0.5 * jnp.tanh(0.5 * gate + 0 * towards)
    towards_gate = towards * up * sigmoid * (1 + gate * (1 - sigmoid))
    return towards_gate.astype(kept[0].dtype), (towards * gate * sigmoid).astype(kept[1].dtype)


_rounded_swiglu.defvjp(_swiglu_forward, _swiglu_backward)
