"""Activations in bfloat16: the residual stream and all activations kept for the backward pass take half the bytes.

With `precision="bfloat16"` alone, matrix products round their operands and return float32. So activations between two
products, and most activations kept for the backward pass, take 4 bytes each. With `activations="bfloat16"` products
sum in float32 but return bfloat16, and activations are bfloat16 in memory. On a GPU this is called mixed precision
(Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740). Elementwise operations still compute in float32, within
one fused pass over memory (`in_float32`): norms with their statistics, rotary positions, gates, softmax and loss.
Weights, their gradients and the optimizer's state are float32.

A model only has to call `stream` on the input of its first block. All other functions return the type of their first
argument, as products do (`levers/precision.py`). Leave bfloat16 off if the chip computes in float32 anyway, and time it
on a CPU, where each conversion is an instruction.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from plimsoll.types import Compute


def stream(x: Array, compute: Compute) -> Array:
    """Casts `x`, the input of the first block, to the type of the residual stream."""
    return x.astype(compute.activations)


def in_float32(function: Callable[..., Array], x: Array, *others: Any) -> Array:
    """Returns `function` of the arguments, computed in float32 and rounded to the type of `x`.

    If `x` is bfloat16, only the arguments are kept for the backward pass, in their own types.

    Args:
        function: Function from arrays to one array, of operations that the compiler can fuse into one pass.
        x: First argument. The result has its type.
        others: Further arguments; bfloat16 arrays are widened, too.
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
    """Returns the gradients of gate and up, and computes the sigmoid again instead of keeping it in float32.

    XLA for CPU drops optimization barriers. Writing the sigmoid as a tanh prevents reuse of the forward pass's
    sigmoid. Adding `0 * towards` (the output's gradient) prevents its computation long before its use.
    """
    gate, up, towards = (x.astype(jnp.float32) for x in (*kept, towards))
    sigmoid = 0.5 + 0.5 * jnp.tanh(0.5 * gate + 0 * towards)
    towards_gate = towards * up * sigmoid * (1 + gate * (1 - sigmoid))
    return towards_gate.astype(kept[0].dtype), (towards * gate * sigmoid).astype(kept[1].dtype)


_rounded_swiglu.defvjp(_swiglu_forward, _swiglu_backward)
