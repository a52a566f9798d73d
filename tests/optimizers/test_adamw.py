"""AdamW's settings reach optax: the schedule's corners, what decays, what is clipped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.models.decoder import Decoder
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.settings import decayed
from plimsoll.types import Compute


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def test_the_schedule_rises_to_the_peak_and_falls_to_a_tenth():
    rate = AdamW(learning_rate=1e-3, warmup_steps=10).schedule(100)
    assert rate(0) == 0
    assert float(rate(5)) == pytest.approx(5e-4)
    assert float(rate(10)) == pytest.approx(1e-3)
    assert float(rate(55)) == pytest.approx(0.55e-3)  # half-way down the cosine
    assert float(rate(100)) == pytest.approx(1e-4)
    assert float(rate(1000)) == pytest.approx(1e-4)
    assert all(float(rate(n)) >= float(rate(n + 1)) for n in range(10, 100))


@pytest.mark.parametrize("steps", [1, 5])
def test_a_run_shorter_than_its_warm_up_still_reaches_the_peak(steps):
    assert float(AdamW(learning_rate=1e-3, warmup_steps=0).schedule(100)(0)) == pytest.approx(1e-3)
    rate = AdamW(learning_rate=1e-3, warmup_steps=100).schedule(steps)
    assert max(float(rate(n)) for n in range(steps + 1)) == pytest.approx(1e-3, rel=0.1)


def test_matrices_and_embeddings_decay_norms_and_biases_do_not():
    shape = DecoderShape(vocab=10, width=32, layers=1, heads=1, inner=64)
    params = jax.eval_shape(Decoder(shape, Compute()).init, jax.random.key(0))
    flat, _ = jax.tree_util.tree_flatten_with_path(decayed(params))
    kept = {jax.tree_util.keystr(path) for path, applies in flat if not applies}
    assert kept == {"['blocks']['attention_norm']['scale']", "['blocks']['feed_norm']['scale']", "['norm']"}
    assert decayed({"kernel": 0, "bias": 0}) == {"kernel": True, "bias": False}


def updated(settings, gradient, params, *, steps=10):
    optimizer = settings.rule(steps)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    return updates


def test_decay_pulls_a_matrix_towards_zero_and_leaves_a_norm_alone():
    params = {"kernel": jnp.ones((2, 2)), "scale": jnp.ones(2)}
    nothing = jax.tree.map(jnp.zeros_like, params)
    moved = updated(AdamW(learning_rate=0.1, warmup_steps=0, weight_decay=0.5), nothing, params)
    np.testing.assert_allclose(moved["kernel"], -0.05, rtol=1e-5)
    np.testing.assert_array_equal(moved["scale"], 0)


def test_clipping_is_by_the_norm_of_everything_and_can_be_off():
    """Epsilon far above the gradient makes Adam's step proportional to it, so that clipping shows."""
    params = {"a": jnp.zeros(3), "b": jnp.zeros(1)}
    gradient = {"a": jnp.full(3, 3.0), "b": jnp.full(1, -3.0)}  # norm 6
    options = {"learning_rate": 1.0, "warmup_steps": 0, "weight_decay": 0.0, "epsilon": 1e6}
    whole = updated(AdamW(clip_norm=None, **options), gradient, params)
    loose = updated(AdamW(clip_norm=6.5, **options), gradient, params)
    tight = updated(AdamW(clip_norm=1.5, **options), gradient, params)
    for name in params:
        np.testing.assert_allclose(loose[name], whole[name], rtol=1e-5)
        np.testing.assert_allclose(tight[name], whole[name] / 4, rtol=1e-5)
