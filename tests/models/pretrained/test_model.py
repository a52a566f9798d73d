"""A pretrained model's forms: what is stored in fewer bits computes what the codes mean, and lets gradients through."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.levers.frozen import widened
from plimsoll.levers.lora import Adapted
from plimsoll.levers.weight_bits import readable
from plimsoll.models.decoder import Decoder, geglu
from plimsoll.models.pretrained.weights import kept, stored_like
from plimsoll.models.shape import DecoderShape
from plimsoll.training.program import tree_bytes
from plimsoll.types import Compute, Levers
from pretrained_folders import SIZES
from small_tasks import parameters_of

GEMMA = DecoderShape(architecture="gemma", **SIZES | {"key_heads": 1, "layers": 2})
LARGE = DecoderShape(
    architecture="llama",
    **SIZES | {"vocab": 256, "width": 256, "layers": 8, "head_width": 64, "inner": 1024},
)


@pytest.fixture(scope="module")
def params():
    return jax.jit(Decoder(GEMMA, Compute()).init)(jax.random.key(0))


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, GEMMA.vocab, (2, 12)).astype(np.int32)


def wide(params):
    """What the codes mean, in float32."""
    packed = lambda leaf: hasattr(leaf, "codes")  # noqa: E731
    return jax.tree.map(lambda leaf: widened(readable(leaf)), params, is_leaf=packed)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_gradients_reach_the_given_vectors_through_frozen_layers(params, bits):
    vectors = jax.random.normal(jax.random.key(1), (2, 12, GEMMA.width))
    few = kept(params, bits)
    assert tree_bytes(few) < tree_bytes(params) if bits < 32 else tree_bytes(few) == tree_bytes(params)

    @partial(jax.jit, static_argnums=2)
    @jax.grad
    def gradient(vectors, tree, model):
        return jnp.sum(jnp.sin(model.hidden(tree, inputs_embeds=vectors)))

    found = gradient(vectors, few, Decoder(GEMMA, Compute(levers=Levers(remat="block")), frozen=True))
    expected = gradient(vectors, wide(few), Decoder(GEMMA, Compute()))
    assert jnp.linalg.norm(expected) > 1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_frozen_kernels_take_no_gradient_and_others_do(params, ids):
    def total(kernels, frozen):
        tree = params | {"blocks": params["blocks"] | {"up": kernels}}
        return jnp.sum(jnp.sin(Decoder(GEMMA, Compute(), frozen=frozen).hidden(tree, ids)))

    kernels = params["blocks"]["up"]
    assert not jax.jit(jax.grad(partial(total, frozen=True)))(kernels)["kernel"].any()
    assert jnp.abs(jax.jit(jax.grad(partial(total, frozen=False)))(kernels)["kernel"]).max() > 0


def test_what_is_adapted_beside_a_frozen_kernel_is_learned(params, ids):
    model, few = (
        Decoder(GEMMA, Compute(levers=Levers(precision="bfloat16", remat="block")), frozen=True),
        kept(params, 16),
    )
    base = few["blocks"]["query"]["kernel"]
    lead, inner, cols = base.shape
    a, b = jnp.ones((lead, inner, 2)), jnp.zeros((lead, 2, cols))

    def total(b):
        kernel = Adapted(base, a, b, 1.0)
        tree = few | {"blocks": few["blocks"] | {"query": {"kernel": kernel}}}
        return jnp.sum(jnp.sin(model.hidden(tree, ids)))

    value, gradient = jax.jit(jax.value_and_grad(total))(b)
    assert value == pytest.approx(float(jnp.sum(jnp.sin(jax.jit(model.hidden)(few, ids)))), rel=1e-5)
    assert jnp.abs(gradient).max() > 0


ALTERNATING = replace(LARGE, architecture="gemma2", windowed=(True, False) * 4, window=8, score_cap=50.0)
OF_SIX = replace(LARGE, architecture="gemma3", windowed=(True,) * 5 + (False, True, True), window=8)


@pytest.mark.parametrize(("large", "bits"), [(LARGE, 16), (LARGE, 8), (ALTERNATING, 4), (OF_SIX, 4)])
def test_no_more_than_a_few_layers_are_widened_at_once(large, bits):
    """Of all layers, the bytes of a copy in float32 are 31 MB; of the two largest kernels of one, 2 MB."""
    model, like = Decoder(large, Compute(levers=Levers(remat="block")), frozen=True), stored_like(large, bits)
    vectors = jax.ShapeDtypeStruct((1, 16, LARGE.width), jnp.float32)
    compiled = jax.jit(jax.grad(lambda x, tree: jnp.sum(model.hidden(tree, inputs_embeds=x)))).lower(vectors, like)
    layer = 4 * (parameters_of(LARGE) - LARGE.vocab * LARGE.width) // LARGE.layers
    assert compiled.compile().memory_analysis().temp_size_in_bytes < 3 * layer


@pytest.mark.parametrize("exact", [False, True])
def test_the_gate_of_a_gemma_is_gelu_itself_or_by_tanh(exact):
    gate, up = np.linspace(-4, 4, 33), np.linspace(1, 3, 33)
    cdf = np.array([(1 + math.erf(x / 2**0.5)) / 2 for x in gate])
    by_tanh = (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3))) / 2
    found = np.asarray(geglu(jnp.float32(gate), jnp.float32(up), exact=exact))
    np.testing.assert_allclose(found, gate * (cdf if exact else by_tanh) * up, atol=2e-6)
    assert abs(gate * (cdf - by_tanh) * up).max() > 5e-4


def test_a_shape_with_gelu_itself_computes_other_hidden_states(params, ids):
    by_tanh, exact = (Decoder(replace(GEMMA, exact_gelu=exact), Compute(), frozen=True) for exact in (False, True))
    factors = {"gate": 50, "down": 10}
    louder = {name: {"kernel": factor * params["blocks"][name]["kernel"]} for name, factor in factors.items()}
    louder = params | {"blocks": params["blocks"] | louder}
    one, other = (jax.jit(model.hidden)(louder, ids) for model in (by_tanh, exact))
    assert abs(one - other).max() > 1e-4
