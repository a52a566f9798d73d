"""Diagonal linear recurrences, c_t = a_t c_{t-1} + x_t, over long sequences: several ways to the same states.

`steps` and `matmul` cut the sequence in chunks: each chunk runs from a state of zero, all of them side by side, then
one state is carried from chunk to chunk (by `matmul` in a prefix scan over the chunks), and what it leaves at each
position is added. `associative` is a parallel
prefix scan (Blelloch, 1990; Smith et al., "S5", 2208.04933, section 3), `fft` a convolution with the powers of a fixed
coefficient, padded to twice the length so that it does not wrap.

The backward pass is the same recurrence from the end (`_backward`): it keeps the states and nothing else, and its
gradients go through all chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex

Form = Literal["steps", "matmul", "associative", "fft"]
Coefficient = Complex[Array, " states"] | Complex[Array, "batch length states"]
"""One for all positions, or one each."""


def states(
    coefficient: Coefficient,
    inputs: Complex[Array, "batch length states"],
    initial: Complex[Array, "batch states"] | None = None,
    *,
    form: Form,
    chunk: int = 256,
) -> Complex[Array, "batch length states"]:
    """Returns c_t for every t.

    Args:
        coefficient: a_t.
        inputs: What is added at each position.
        initial: c_{-1}; zero if it is None.
        form: How it is computed.
        chunk: Positions of a chunk; changes nothing but the cost.

    Raises:
        ValueError: `fft` or `matmul` with a coefficient for each position: they need a fixed one.
    """
    if form in ("fft", "matmul") and coefficient.ndim > 1:
        raise ValueError(f"a coefficient for each position cannot go by {form}: `steps` and `associative` can")
    if initial is None:
        initial = jnp.zeros_like(inputs[:, 0])
    return _states(form, min(chunk, inputs.shape[1]), coefficient, inputs, initial)


def _by_form(form: Form, chunk: int, coefficient: Array, inputs: Array, initial: Array) -> Array:
    if form == "associative":
        each = jnp.broadcast_to(coefficient, inputs.shape)
        reach, local = jax.lax.associative_scan(
            lambda first, second: (first[0] * second[0], second[0] * first[1] + second[1]), (each, inputs), axis=1
        )
        return local + reach * initial[:, None]
    if form == "fft":
        length = inputs.shape[1]
        powers = _powers(coefficient, length + 1)
        product = jnp.fft.fft(inputs, 2 * length, axis=1) * jnp.fft.fft(powers[:length], 2 * length, axis=0)
        return jnp.fft.ifft(product, axis=1)[:, :length] + powers[1:] * initial[:, None]
    return _in_chunks(chunk, coefficient, inputs, initial, within=_by_matmul if form == "matmul" else _by_steps)


_states = jax.custom_vjp(_by_form, nondiff_argnums=(0, 1))


def _forward(form: Form, chunk: int, coefficient: Array, inputs: Array, initial: Array):
    result = _states(form, chunk, coefficient, inputs, initial)
    return result, (coefficient, initial, result)


def _backward(form: Form, chunk: int, kept: tuple[Array, Array, Array], gradient: Array):
    """Returns the gradients. That of c_t is its own and a_{t+1} times that of c_{t+1}. (JAX's gradients of complex
    numbers take no conjugates.)"""
    coefficient, initial, result = kept
    fixed = coefficient.ndim == 1
    following = coefficient
    if not fixed:  # in the order of the way back, where the last one meets a state of zero
        following = jnp.flip(jnp.roll(coefficient, -1, axis=1), axis=1)
    back = _by_form(form, chunk, following, jnp.flip(gradient, axis=1), jnp.zeros_like(initial))
    of_inputs = jnp.flip(back, axis=1)
    before = jnp.concatenate([initial[:, None], result[:, :-1]], axis=1)
    of_coefficient = jnp.einsum("btk,btk->k", before, of_inputs) if fixed else before * of_inputs
    of_initial = of_inputs[:, 0] * (coefficient if fixed else coefficient[:, 0])
    return of_coefficient, of_inputs, of_initial


_states.defvjp(_forward, _backward)

Within = Callable[[Array, Array], tuple[Array, Array]]
"""Coefficients and inputs of (chunk, batch, chunks, states) to the states of each chunk from zero, and to what is left
at each position of a state before the chunk."""


def _in_chunks(chunk: int, coefficient: Array, inputs: Array, initial: Array, *, within: Within) -> Array:
    """Returns the states chunk by chunk; the last chunk is filled up with inputs of zero."""
    batch, length, width = inputs.shape
    missing = -length % chunk
    chunks = (length + missing) // chunk

    def cut(values: Array) -> Array:  # (chunk, batch, chunks, states)
        padded = jnp.pad(values, ((0, 0), (0, missing), (0, 0)))
        return padded.reshape(batch, chunks, chunk, width).transpose(2, 0, 1, 3)

    local, reach = within(coefficient if coefficient.ndim == 1 else cut(coefficient), cut(inputs))

    def to_next(state: Array, this: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, own = this
        return reached * state + own, state

    whole = jnp.broadcast_to(reach[-1], (batch, chunks, width))
    if within is _by_matmul:  # for accelerators: a loop would start some kernels for every chunk
        after = _by_form("associative", chunk, whole, local[-1], initial)
        entering = jnp.concatenate([initial[:, None], after[:, :-1]], axis=1)
    else:
        _, entering = jax.lax.scan(to_next, initial, (whole.swapaxes(0, 1), local[-1].swapaxes(0, 1)))
        entering = entering.swapaxes(0, 1)
    result = local + reach * entering
    return result.transpose(1, 2, 0, 3).reshape(batch, length + missing, width)[:, :length]


def _by_steps(coefficient: Array, inputs: Array) -> tuple[Array, Array]:
    fixed = coefficient.ndim == 1

    def step(now: tuple[Array, Array], this: dict[str, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (state, reach), a = now, this.get("coefficient", coefficient)
        after = a * state + this["input"], a * reach
        return after, after

    ones = jnp.ones_like(coefficient if fixed else inputs[0])
    each = {"input": inputs} if fixed else {"input": inputs, "coefficient": coefficient}
    _, (local, reach) = jax.lax.scan(step, (jnp.zeros_like(inputs[0]), ones), each)
    return local, reach[:, None, None] if fixed else reach


def _by_matmul(coefficient: Array, inputs: Array) -> tuple[Array, Array]:
    """Returns what `_by_steps` does, by a triangular matrix of powers for each state times all chunks at once."""
    length = inputs.shape[0]
    powers = _powers(coefficient, length + 1)
    apart = jnp.arange(length)[:, None] - jnp.arange(length)
    triangle = jnp.where(apart[..., None] >= 0, powers[jnp.maximum(apart, 0)], 0)
    local = jnp.einsum("jik,ibgk->jbgk", triangle, inputs, precision="highest")
    return local, powers[1:, None, None]


def _powers(coefficient: Array, count: int) -> Array:
    """Returns coefficient^0 to coefficient^(count - 1), by exponents: products of thousands of factors lose digits."""
    return jnp.exp(jnp.arange(count).astype(coefficient.dtype)[:, None] * jnp.log(coefficient))
