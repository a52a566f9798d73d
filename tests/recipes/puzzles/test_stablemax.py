"""Stablemax in float32 is as good as what it replaces in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plimsoll.recipes.puzzles.metrics import log_stablemax, stablemax_cross_entropy

STRICT = True

LOGITS = arrays(np.float32, (3, 7), elements=st.floats(-1e6, 1e6, width=32))
IGNORED = -100
value = jax.jit(log_stablemax)
gradient = jax.jit(jax.grad(lambda logits, labels: jnp.sum(stablemax_cross_entropy(logits, labels, ignored=IGNORED))))


def s(x):
    """As it is written down, float64."""
    return np.where(x >= 0, x + 1, 1 / (1 - np.minimum(x, 0)))


def slope(x):
    return np.where(x >= 0, 1.0, 1 / (1 - np.minimum(x, 0)) ** 2)


@given(LOGITS)
def test_probabilities_sum_to_one_and_match_float64(logits):
    exact = s(np.float64(logits))
    exact = np.log(exact / exact.sum(-1, keepdims=True))
    np.testing.assert_allclose(value(logits), exact, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(np.exp(np.float64(value(logits))).sum(-1), 1, rtol=5e-6)


@example(np.array([[0, -378, -378, -378, -378, -378, -378]] * 3, np.float32), 0)
@given(LOGITS, st.integers(0, 6))
def test_slopes_match_float64(logits, label):
    """To 1e-5, and to the rounding of the two terms whose difference a slope is: of a sure answer both are near 1."""
    x = np.float64(logits)
    whole = s(x).sum(-1, keepdims=True)
    chosen = np.arange(7) == label
    expected = slope(x) * (1 / whole - chosen / s(x))
    actual = gradient(logits, np.full(3, label, np.int32))
    terms = np.linalg.norm(slope(x) * chosen / s(x))
    assert np.linalg.norm(actual - expected) <= 1e-5 * np.linalg.norm(expected) + 1e-6 * terms + 1e-30


def test_an_ignored_label_costs_nothing():
    labels = np.array([2, IGNORED, IGNORED], np.int32)
    logits = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    each = stablemax_cross_entropy(logits, labels, ignored=IGNORED)
    assert each[0] > 0
    assert (each[1:] == 0).all()
    assert (gradient(logits, labels)[1:] == 0).all()


@pytest.mark.parametrize("large", [1e30, -1e30])
def test_it_neither_overflows_nor_loses_its_slope(large):
    logits = np.array([[large, 0, 1]], np.float32)
    assert np.isfinite(value(logits)).all()
    assert np.isfinite(gradient(logits, np.zeros(1, np.int32))).all()
