"""Diagonal linear recurrences, c_t = a c_{t-1} + x_t, over long sequences, computed in one of two ways.

The sequence is cut in chunks. All chunks run side by side, each from a state of zero; then the state is carried from
chunk to chunk, and its contribution to each position is added. `steps` goes through a chunk position by position and
from chunk to chunk in a loop. `matmul` multiplies a chunk by a triangular matrix of powers of a, and carries states by
a parallel prefix scan (Blelloch, 1990; Smith et al., "S5", 2208.04933, section 3): on an accelerator each iteration of
a loop would start some kernels.

The backward pass (`_backward`) is the same recurrence from the end. It keeps only the states, and gradients go through
all chunks.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex

Form = Literal["steps", "matmul"]


def _states(
    coefficient: Complex[Array, " states"],
    inputs: Complex[Array, "batch length states"],
    initial: Complex[Array, "batch states"],
    form: Form,
    chunk: int,
) -> Complex[Array, "batch length states"]:
    """Returns c_t for every t, chunk by chunk; the last chunk is filled up with inputs of zero.

    Args:
        coefficient: a, the same at every position.
        inputs: x_t.
        initial: c_{-1}.
        form: Algorithm, `steps` or `matmul`.
        chunk: Positions of a chunk; changes only the cost.
    """
    # Chunks side by side: (positions of a chunk, batch, chunks, states).
    batch, length, width = inputs.shape
    chunk = min(chunk, length)
    missing = -length % chunk
    chunks = (length + missing) // chunk
    padded = jnp.pad(inputs, ((0, 0), (0, missing), (0, 0)))
    cut = padded.reshape(batch, chunks, chunk, width).transpose(2, 0, 1, 3)

    # `local`: states if each chunk starts from zero. `reach`: factor of the state before the chunk at each position.
    if form == "matmul":
        local, reach = _by_matmul(coefficient, cut)
        entering = _carried_by_scan(reach[-1], local[-1], initial)
    else:
        local, reach = _by_steps(coefficient, cut)
        entering = _carried_in_steps(reach[-1], local[-1], initial)

    result = local + reach * entering
    return result.transpose(1, 2, 0, 3).reshape(batch, length + missing, width)[:, :length]


states = jax.custom_vjp(_states, nondiff_argnums=(3, 4))
"""`_states` with a backward pass of its own."""


def _forward(coefficient: Array, inputs: Array, initial: Array, form: Form, chunk: int):
    result = states(coefficient, inputs, initial, form, chunk)
    return result, (coefficient, initial, result)


def _backward(form: Form, chunk: int, kept: tuple[Array, Array, Array], gradient: Array):
    """Returns the gradients of coefficient, inputs and initial state.

    The gradient of c_t is its direct gradient plus a times the gradient of c_{t+1}. (JAX's gradients of complex numbers
    take no conjugates.)
    """
    coefficient, initial, result = kept
    back = _states(coefficient, jnp.flip(gradient, axis=1), jnp.zeros_like(initial), form, chunk)
    of_inputs = jnp.flip(back, axis=1)
    before = jnp.concatenate([initial[:, None], result[:, :-1]], axis=1)
    of_coefficient = jnp.einsum("btk,btk->k", before, of_inputs)
    return of_coefficient, of_inputs, of_inputs[:, 0] * coefficient


states.defvjp(_forward, _backward)


def _by_steps(coefficient: Array, inputs: Array) -> tuple[Array, Array]:
    def step(before: tuple[Array, Array], this: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        state, reach = before
        after = coefficient * state + this, coefficient * reach
        return after, after

    start = jnp.zeros_like(inputs[0]), jnp.ones_like(coefficient)
    _, (local, reach) = jax.lax.scan(step, start, inputs)
    return local, reach[:, None, None]


def _by_matmul(coefficient: Array, inputs: Array) -> tuple[Array, Array]:
    """Returns the result of `_by_steps`, by a product of all chunks with a triangular matrix of powers per state."""
    # Powers by exp and log: products of thousands of factors lose digits.
    length = inputs.shape[0]
    exponents = jnp.arange(length + 1).astype(coefficient.dtype)
    powers = jnp.exp(exponents[:, None] * jnp.log(coefficient))

    apart = jnp.arange(length)[:, None] - jnp.arange(length)
    triangle = jnp.where(apart[..., None] >= 0, powers[jnp.maximum(apart, 0)], 0)
    local = jnp.einsum("jik,ibgk->jbgk", triangle, inputs, precision="highest")
    return local, powers[1:, None, None]


def _carried_in_steps(reach: Array, ends: Array, initial: Array) -> Array:
    """Returns the state before each chunk, (batch, chunks, states).

    `ends` holds the last state of each chunk if it starts from zero.
    """

    def to_next(state: Array, end: Array) -> tuple[Array, Array]:
        return reach[0] * state + end, state

    _, entering = jax.lax.scan(to_next, initial, ends.swapaxes(0, 1))
    return entering.swapaxes(0, 1)


def _carried_by_scan(reach: Array, ends: Array, initial: Array) -> Array:
    """Returns the result of `_carried_in_steps`, by a parallel prefix scan."""

    def joined(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    reaches, local = jax.lax.associative_scan(joined, (jnp.broadcast_to(reach, ends.shape), ends), axis=1)
    after = local + reaches * initial[:, None]
    return jnp.concatenate([initial[:, None], after[:, :-1]], axis=1)
