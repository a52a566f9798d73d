"""AdamATan2 beside a float64 reference, and beside the published implementation."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.errors import RecipeError
from plimsoll.optimizers.adam_atan2 import AdamATan2


def reference(parameters, gradients, *, rate, decay, beta1, beta2):
    """As it is written down, float64."""
    p, m, v = (np.float64(x) for x in (parameters, np.zeros_like(parameters), np.zeros_like(parameters)))
    for t, gradient in enumerate(np.float64(g) for g in gradients):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        turned = np.arctan2(m, np.sqrt(v) / np.sqrt(1 - beta2 ** (t + 1)))
        p = p * (1 - rate * decay) - rate / (1 - beta1 ** (t + 1)) * turned
    return p


def taken(settings, parameters, gradients, steps=100):
    rule, apply = built(settings, steps)
    state = rule.init(parameters)
    for gradient in gradients:
        parameters, state = apply(gradient, state, parameters)
    return parameters


@cache
def built(settings, steps):
    rule = settings.rule(steps)
    return rule, jax.jit(rule.apply)


def drawn(seed, *shape, scale=1.0):
    return np.float32(np.random.default_rng(seed).normal(size=shape) * scale)


@pytest.mark.parametrize(("beta1", "beta2", "decay"), [(0.9, 0.95, 1.0), (0.0, 0.0, 0.1), (0.99, 0.999, 0.0)])
@given(scale=st.floats(1e-8, 1e4))
def test_steps_are_those_written_down(beta1, beta2, decay, scale):
    settings = AdamATan2(
        decay="constant", learning_rate=1e-2, warmup_steps=0, weight_decay=decay, beta1=beta1, beta2=beta2
    )
    parameters, gradients = drawn(0, 40), [drawn(seed, 40, scale=scale) for seed in range(1, 5)]
    expected = reference(parameters, gradients, rate=1e-2, decay=decay, beta1=beta1, beta2=beta2)
    np.testing.assert_allclose(taken(settings, parameters, gradients), expected, rtol=1e-5, atol=1e-6)


@given(st.floats(1e-15, 1e15), st.booleans())
def test_the_first_step_is_as_long_whatever_the_gradient_is(size, negative):
    gradient = np.float32([-size if negative else size])
    settings = AdamATan2(decay="constant", learning_rate=1e-3, warmup_steps=0, weight_decay=0.0)
    expected = 1e-3 / 0.1 * math.atan2(0.1, 1)
    assert expected == pytest.approx(0.9967e-3, rel=1e-4)
    assert abs(float(taken(settings, np.zeros(1, np.float32), [gradient])[0])) == pytest.approx(expected, rel=1e-5)


def test_a_gradient_of_zero_moves_nothing():
    settings = AdamATan2(decay="constant", warmup_steps=0, weight_decay=0.0)
    assert taken(settings, np.zeros(3, np.float32), [np.zeros(3, np.float32)] * 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("variant", ["attention", "mlp"])
def test_golden_three_updates(shared, variant):
    with np.load(shared / "golden" / f"trm_{variant}.npz", allow_pickle=False) as file:
        golden = dict(file)
    rate, decay, beta1, beta2 = (float(x) for x in golden["adam_atan2/hyper"])
    settings = AdamATan2(
        decay="constant", learning_rate=rate, warmup_steps=0, weight_decay=decay, beta1=beta1, beta2=beta2
    )

    def under(prefix):
        return {name.removeprefix(prefix): value for name, value in golden.items() if name.startswith(prefix)}

    after = taken(settings, under("param/"), [under(f"step{step}/grad/") for step in range(3)])
    expected, before = under("adam_atan2/after3/"), under("param/")
    assert after.keys() == expected.keys()
    for name in after:
        moved, should = np.float64(after[name]) - before[name], expected[name] - before[name]
        assert np.linalg.norm(moved - should) <= 1e-5 * np.linalg.norm(expected[name]), name
        assert np.linalg.norm(moved - should) <= 1e-3 * np.linalg.norm(should), name


def test_the_rate_warms_up_from_the_first_step_and_then_stays():
    rate = jax.jit(AdamATan2(learning_rate=1e-4, warmup_steps=2000, final_fraction=1.0).schedule(65_104))
    for step, share in ((1, 1 / 2000), (1000, 0.5), (1999, 1999 / 2000), (2000, 1), (2001, 1), (65_104, 1), (10**6, 1)):
        assert float(rate(jnp.int32(step - 1))) == pytest.approx(1e-4 * share, rel=1e-6)


def test_the_rate_may_fall_as_a_cosine():
    rate = jax.jit(AdamATan2(learning_rate=1.0, warmup_steps=10, final_fraction=0.1).schedule(110))
    assert float(rate(jnp.int32(59))) == pytest.approx(0.55, rel=1e-6)
    assert float(rate(jnp.int32(109))) == pytest.approx(0.1, rel=1e-6)
    assert float(rate(jnp.int32(500))) == pytest.approx(0.1, rel=1e-6)


def test_a_wrong_setting_is_refused():
    with pytest.raises(RecipeError, match="--weight-decay must be 0 or more and finite, got -1"):
        AdamATan2(weight_decay=-1.0)
