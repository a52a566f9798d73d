"""Both forms of the recurrence against the plain loop, in double precision: states, gradients, causality."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.longcontext.recurrence import states

STRICT = True

FORMS = ("steps", "matmul")
BATCH, LENGTH, STATES = 2, 67, 5


def example():
    random = np.random.default_rng(0)
    coefficient = random.uniform(0.3, 0.999, STATES) * np.exp(1j * random.uniform(0, 3, STATES))
    inputs = random.normal(size=(2, BATCH, LENGTH, STATES))
    initial = random.normal(size=(2, BATCH, STATES))
    return coefficient, inputs[0] + 1j * inputs[1], initial[0] + 1j * initial[1]


def loop(coefficient, inputs, initial):
    """As the definition says it."""

    def step(state, given):
        state = coefficient * state + given
        return state, state

    return jax.lax.scan(step, initial, inputs.swapaxes(0, 1))[1].swapaxes(0, 1)


def with_gradients(of):
    """States, and the gradients of a number made of them."""
    return jax.jit(lambda *given: (of(*given), jax.grad(lambda *a: read(of(*a)), argnums=(0, 1, 2))(*given)))


@cache
def by_the_loop():
    """What no form or chunk changes."""
    return with_gradients(loop)(*example())


def read(values):
    """A number that depends on every part of every state."""
    weights = jnp.cos(jnp.arange(values.size, dtype=jnp.float64)).reshape(values.shape)
    return jnp.sum(weights * values.real + jnp.flip(weights) * values.imag**2)


@pytest.mark.slow_except("steps-7", "matmul-7", "matmul-67")
@pytest.mark.parametrize("chunk", [1, 7, 64, LENGTH, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_states_and_all_gradients_are_those_of_the_plain_loop(form, chunk):
    with jax.enable_x64(True):
        expected, plain = by_the_loop()
        found, ours = with_gradients(partial(states, form=form, chunk=chunk))(*example())
        assert np.allclose(found, expected, rtol=0, atol=1e-12)
        for one, other in zip(ours, plain, strict=True):
            assert np.linalg.norm(one - other) <= 1e-11 * np.linalg.norm(other)


@pytest.mark.parametrize("form", FORMS)
def test_no_state_sees_a_later_input(form):
    coefficient, inputs, initial = map(jnp.complex64, example())
    of = jax.jit(partial(states, form=form, chunk=16))
    before, after = of(coefficient, inputs, initial), of(coefficient, inputs.at[:, 40].add(100.0), initial)
    assert np.max(np.abs(before - after)[:, :40]) == 0
    assert np.min(np.abs(before - after)[:, 40]) > 1.0


@pytest.mark.parametrize("form", FORMS)
def test_memory_reaches_thousands_of_positions_in_single_precision(form):
    """|a| = 0.9999: after 8,192 positions 44 % of an input are left."""
    coefficient = jnp.full(1, 0.9999 * np.exp(0.1j), jnp.complex64)
    inputs = jnp.zeros((1, 8193, 1), jnp.complex64).at[0, 0, 0].set(1.0)
    initial = jnp.zeros((1, 1), jnp.complex64)
    left = jax.jit(partial(states, form=form, chunk=256))(coefficient, inputs, initial)[0, -1, 0]
    assert abs(left - (0.9999 * np.exp(0.1j)) ** 8192) < 2e-3
