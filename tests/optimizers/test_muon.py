"""Muon knows our stacks of kernels: each layer moves as it would alone, and what is no matrix moves as under AdamW."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers

from plimsoll.models.decoder import Decoder
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.muon import LIKE_ADAMW, Muon, matrices
from plimsoll.types import Compute


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def moved(params, gradients, **options):
    settings = {"learning_rate": 0.1, "warmup_steps": 0, "decay": "constant", "weight_decay": 0.0} | options
    rule = Muon(**settings).rule(100)
    state = rule.init(params)
    for gradient in gradients:
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def drawn(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("shape", [(24, 64), (64, 24)])
def test_each_layer_of_a_stack_moves_as_it_would_alone(shape):
    stack, gradients = drawn(0, 3, *shape), [drawn(seed, 3, *shape) for seed in (1, 2)]
    together = moved({"kernel": stack}, [{"kernel": gradient} for gradient in gradients])["kernel"]
    for layer in range(3):
        alone = moved({"kernel": stack[layer]}, [{"kernel": gradient[layer]} for gradient in gradients])["kernel"]
        np.testing.assert_allclose(together[layer], alone, rtol=1e-4, atol=1e-5)


def test_an_update_has_singular_values_of_about_one_and_the_length_of_adamws():
    change = moved({"kernel": jnp.zeros((64, 256))}, [{"kernel": drawn(1, 64, 256)}])["kernel"]
    singular = np.linalg.svd(change / (0.1 * LIKE_ADAMW * np.sqrt(256)), compute_uv=False)
    assert 0.6 < singular.min() < singular.max() < 1.3
    assert float(jnp.sqrt(jnp.mean(change**2))) == pytest.approx(0.1 * LIKE_ADAMW, rel=0.15)


def test_matrices_are_the_kernels_of_a_decoder_and_no_embedding_norm_or_head():
    shape = DecoderShape(vocab=10, width=32, layers=2, heads=1, inner=64, tied=False)
    params = jax.eval_shape(Decoder(shape, Compute()).init, jax.random.key(0))
    axes = jax.tree.leaves_with_path(matrices(params), is_leaf=lambda leaf: isinstance(leaf, MuonDimensionNumbers))
    words = {jax.tree_util.keystr(path) for path, _ in axes}
    kernels = ("query", "key", "value", "out", "gate", "up", "down")
    assert words == {f"['blocks']['{name}']['kernel']" for name in kernels}
    assert matrices({"kernel": jnp.zeros(3), "bias": jnp.zeros((2, 3))}) == {"kernel": None, "bias": None}


def test_decay_pulls_matrices_and_embeddings_and_leaves_norms_alone():
    params = {"kernel": jnp.ones((2, 2)), "embedding": jnp.ones((2, 2)), "scale": jnp.ones(2)}
    nothing = jax.tree.map(jnp.zeros_like, params)
    after = moved(params, [nothing], weight_decay=0.5)
    np.testing.assert_allclose(after["kernel"], 0.95, rtol=1e-5)
    np.testing.assert_allclose(after["embedding"], 0.95, rtol=1e-5)
    np.testing.assert_array_equal(after["scale"], 1)
