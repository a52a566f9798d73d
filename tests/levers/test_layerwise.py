"""Updates layer by layer: the numbers of the whole update, in fewer bytes, at the price that is stated."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.adamw import AdamW
from plimsoll.planner.liveness import kept_on_host_bytes
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Compute, Layered, Levers, LossSum, Storage

SMALL = DecoderShape(vocab=128, width=64, layers=3, heads=2, inner=128, tied=True)
WIDE = DecoderShape(vocab=256, width=256, layers=6, heads=4, inner=768, tied=True)
COMPRESSED = Storage(optimizer_bits=8, weight_bits=24)
BLOCKS = Compute(levers=Levers(remat="block", loss_chunk=32))
STEPS = 8


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def rule(clip_norm, storage=Storage()):  # noqa: B008  (frozen)
    # Epsilon well above rounding: Adam divides near-zero gradients by their own size, which would test noise.
    return AdamW(learning_rate=3e-3, warmup_steps=2, clip_norm=clip_norm, epsilon=1e-5).rule(STEPS, storage)


def batch(examples, length, *, seed=0):
    ids = np.random.default_rng(seed).integers(0, SMALL.vocab, (examples, length + 1)).astype(np.int32)
    labels = ids[:, 1:].copy()
    labels[0, length // 2 :] = -1  # rows of unequal counts
    return {"input_ids": ids[:, :-1], "labels": labels}


def trained(shape, optimizer, *, layerwise, steps):
    task = NextToken(shape, BLOCKS)
    state = jax.jit(make_init(task, optimizer))(np.uint32(3))
    step = jax.jit(make_step(task, optimizer, StepSpec(accumulation=1, layerwise=layerwise)), donate_argnums=0)
    told = []
    for seed in range(steps):
        state, metrics = step(state, batch(4, 16, seed=seed))
        told.append(jax.device_get(metrics))
    return jax.device_get(state), told


@pytest.mark.slow_cases("unclipped-1-untied")
@pytest.mark.parametrize(
    ("clip_norm", "passes", "tied"), [(0.5, 2, True), (None, 1, False)], ids=["0.5-2-tied", "unclipped-1-untied"]
)
def test_training_is_that_of_the_whole_update_to_rounding(clip_norm, passes, tied):
    shape = replace(SMALL, tied=tied)
    whole, told_whole = trained(shape, rule(clip_norm), layerwise=0, steps=STEPS)
    layered, told = trained(shape, rule(clip_norm), layerwise=passes, steps=STEPS)
    assert jax.tree.structure(layered) == jax.tree.structure(whole)  # a run may go from one to the other
    for one, other in zip(jax.tree.leaves(layered), jax.tree.leaves(whole), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert clip_norm is None or max(t["gradient_norm"] for t in told) > clip_norm
    for one, other in zip(told, told_whole, strict=True):
        assert one.keys() == other.keys()
        assert {name: float(value) for name, value in one.items()} == pytest.approx(
            {name: float(value) for name, value in other.items()}, rel=1e-5
        )


@pytest.mark.by_hand  # to the bit only without the options of tests/support/plain_code.py
def test_state_in_fewer_bits_is_updated_to_the_bit():
    """Without a clip: the norm is summed in another order, and codes are rounded at the edge of a step."""
    optimizer = rule(None, COMPRESSED)
    whole, _ = trained(SMALL, optimizer, layerwise=0, steps=3)
    layered, _ = trained(SMALL, optimizer, layerwise=1, steps=3)
    assert any(leaf.dtype == np.uint8 for leaf in jax.tree.leaves(whole))
    jax.tree.map(np.testing.assert_array_equal, layered, whole)


@cache
def traced_step(layerwise, storage=Storage()):  # noqa: B008
    """Nothing runs."""
    with jax.numpy_dtype_promotion("standard"):
        task, optimizer = NextToken(WIDE, BLOCKS), rule(1.0 if layerwise != 1 else None, storage)
        state = jax.eval_shape(make_init(task, optimizer), jax.ShapeDtypeStruct((), jnp.uint32))
        step = jax.jit(make_step(task, optimizer, StepSpec(accumulation=1, layerwise=layerwise)), donate_argnums=0)
        ids = jax.ShapeDtypeStruct((2, 32), jnp.int32)
        return step.trace(state, {"input_ids": ids, "labels": ids})


@cache
def needed(layerwise, storage):
    stats = traced_step(layerwise, storage).lower().compile().memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("storage", [Storage(), COMPRESSED], ids=["whole", "compressed"])
def test_the_gradient_of_the_layers_is_never_whole(passes, storage):
    layer = 4 * WIDE.width**2 + 3 * WIDE.width * WIDE.inner + 2 * WIDE.width
    saved = 4 * (WIDE.layers - 1) * layer  # the gradients of all layers but the one being updated
    whole, layered = needed(0, storage), needed(passes, storage)
    assert whole - layered > saved
    assert layered < 0.4 * saved  # no array of all layers is copied on the way


class Plain:
    """A task whose loss is in one piece."""

    def init(self, key):
        return {"trainable": {"weight": jnp.zeros(3)}}

    def loss(self, params, carry, batch, keys, *, train):
        return LossSum(jnp.sum(params["trainable"]["weight"]), jnp.float32(1)), None, {}


def test_a_language_model_has_its_loss_in_layers():
    assert isinstance(NextToken(SMALL, BLOCKS), Layered)
    assert not isinstance(Plain(), Layered)


def test_the_inputs_of_layers_may_wait_on_the_host():
    with jax.numpy_dtype_promotion("standard"):
        task, optimizer = NextToken(SMALL, BLOCKS), rule(None)
        state = jax.eval_shape(make_init(task, optimizer), jax.ShapeDtypeStruct((), jnp.uint32))
        traced = {}
        for on_host in (False, True):
            step = make_step(task, optimizer, StepSpec(accumulation=1, layerwise=1, inputs_on_host=on_host))
            traced[on_host] = jax.jit(step).trace(state, batch(4, 16)).jaxpr
    assert kept_on_host_bytes(traced[False]) == 0
    assert kept_on_host_bytes(traced[True]) == SMALL.layers * 4 * 16 * SMALL.width * 4
