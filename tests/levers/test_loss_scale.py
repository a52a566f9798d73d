"""Loss scaling: the rule of the scale, a step that overflows leaves no trace, and what it is for: small gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.levers import loss_scale
from plimsoll.levers.loss_scale import FIRST, LARGEST, PATIENCE, SMALLEST, LossScale
from plimsoll.levers.precision import Form, dot


def state(scale, good=0):
    return LossScale(jnp.float32(scale), jnp.int32(good), jnp.int32(0))


adjusted = jax.jit(loss_scale.adjusted)


def after(outcomes, first=None):
    now = first or loss_scale.start()
    for finite in outcomes:
        now = adjusted(now, jnp.bool_(finite))
    return now


def test_the_scale_stays_between_its_bounds():
    assert after([False] * 40).scale == SMALLEST
    assert after([False] * 40).skipped_steps == 40
    assert adjusted(state(LARGEST, PATIENCE - 1), jnp.bool_(True)).scale == LARGEST


@settings(max_examples=examples(30), deadline=None)
@given(outcomes=st.lists(st.booleans(), max_size=30))
def test_the_scale_is_always_a_power_of_two(outcomes):
    scale = float(after(outcomes).scale)
    assert np.log2(scale) == int(np.log2(scale))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_an_overflow(bad):
    gradient = {"a": jnp.ones((3, 2)), "b": [jnp.ones(4)]}
    unscaled = jax.jit(loss_scale.unscaled)
    divided, finite = unscaled(gradient, state(8))
    assert finite
    np.testing.assert_array_equal(divided["b"][0], 1 / 8)
    gradient["b"][0] = gradient["b"][0].at[2].set(bad)
    assert not unscaled(gradient, state(8))[1]


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.0, 0.1, 10)))


def loss_of(weights, x, y, *, precision):
    hidden = jnp.tanh(dot(x, weights["in"], compute=Form(precision, "cpu")))
    return jnp.mean((dot(hidden, weights["out"], compute=Form(precision, "cpu")) - y) ** 2)


@partial(jax.jit, static_argnames="precision")
def step(weights, moments, scaling, x, y, *, precision="float16"):
    """Everything a step does with a loss scale, as in the module's docstring."""
    scaled = lambda w: loss_of(w, x, y, precision=precision) * scaling.scale  # noqa: E731
    gradient, finite = loss_scale.unscaled(jax.grad(scaled)(weights), scaling)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by its int32 count
        updates, new_moments = OPTIMIZER.update(gradient, moments, weights)
        new_weights = optax.apply_updates(weights, updates)
    weights, moments = loss_scale.chosen(finite, (new_weights, new_moments), (weights, moments))
    return weights, moments, loss_scale.adjusted(scaling, finite), finite


def problem():
    random = np.random.default_rng(0)
    x = random.normal(size=(32, 8)).astype(np.float32)
    y = np.sin(x @ random.normal(size=(8, 4))).astype(np.float32)
    weights = {"in": random.normal(size=(8, 16)) / 3, "out": random.normal(size=(16, 4)) / 4}
    weights = jax.tree.map(jnp.float32, weights)
    return weights, OPTIMIZER.init(weights), x, y


def test_a_step_that_overflows_leaves_no_trace_and_training_goes_on():
    weights, moments, x, y = problem()
    scaling = state(LARGEST)  # far too large for float16: the first steps must overflow
    first = float(loss_of(weights, x, y, precision="float32"))
    taken = skipped = 0
    for _ in range(60):
        before = weights, moments
        weights, moments, scaling, finite = step(weights, moments, scaling, x, y)
        if finite:
            taken += 1
        else:
            skipped += 1
            for new, old in zip(jax.tree.leaves((weights, moments)), jax.tree.leaves(before), strict=True):
                np.testing.assert_array_equal(new, old)
    assert skipped == scaling.skipped_steps > 5
    assert optax.tree.get(moments, "ScaleByAdamState").count == taken > 30
    assert loss_of(weights, x, y, precision="float32") < first / 2


def test_gradients_too_small_for_float16_survive_because_of_it():
    """A cotangent of 1e-9 is 0 in float16, and 6.6e-5 once it is scaled."""
    x, weight = jnp.ones((4, 8)), jnp.ones((8, 2))

    @jax.jit
    def gradient(scale):
        small = lambda w: 1e-9 * jnp.sum(dot(x, w, compute=Form("float16", "cpu"))) * scale  # noqa: E731
        return loss_scale.unscaled(jax.grad(small)(weight), state(1)._replace(scale=scale))[0]

    assert not np.any(gradient(jnp.float32(1)))
    np.testing.assert_allclose(gradient(jnp.float32(FIRST)), 4e-9, rtol=1e-3)


def test_what_a_step_does_not_change_is_handed_on_as_it_is():
    """Frozen weights may lie on the host, where a choice between two of them would bring both to the device."""
    frozen, learned = jnp.ones(3), jnp.zeros(3)
    found = loss_scale.chosen(
        jnp.bool_(False), {"frozen": frozen, "new": learned + 1}, {"frozen": frozen, "new": learned}
    )
    assert found["frozen"] is frozen
    assert not found["new"].any()
