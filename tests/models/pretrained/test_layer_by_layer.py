"""A published model, learned layer by layer: the numbers of the whole update, with documents and windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.models.pretrained.language import PretrainedNextToken
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.adamw8 import build
from plimsoll.training.step import make_init, make_step
from plimsoll.types import IGNORE, Compute
from pretrained_folders import GEMMA_3, LLAMA

SEGMENTS = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2], [0] * 12], np.int32)


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def batch():
    ids = np.random.default_rng(0).integers(0, LLAMA.vocab, (2, 13)).astype(np.int32)
    labels = np.where(np.arange(12) % 5 == 4, IGNORE, ids[:, 1:]).astype(np.int32)
    starts = np.array([[0] * 5 + [5] * 6 + [11], [0] * 12], np.int32)
    return {
        "input_ids": ids[:, :-1], "labels": labels, "segments": SEGMENTS,
        "positions": (np.arange(12, dtype=np.int32) - starts).astype(np.int32),
    }  # fmt: skip


def trained(shape, *, layerwise, steps=2):
    task = PretrainedNextToken(shape, Compute(remat="block", loss_chunk=8), frozen=False)
    rule = build(AdamW(learning_rate=1e-2, warmup_steps=1, clip_norm=None, epsilon=1e-5), 10)
    state = jax.jit(make_init(task, rule))(np.uint32(3))
    step = jax.jit(make_step(task, rule, accumulation=1, layerwise=layerwise), donate_argnums=0)
    for _ in range(steps):
        state, metrics = step(state, batch())
    return jax.device_get((state["params"], metrics))


def test_its_parts_make_up_its_loss():
    task = PretrainedNextToken(GEMMA_3, Compute(loss_chunk=8), frozen=False)
    params = jax.jit(task.init)(jax.random.key(0))["trainable"]

    def in_parts(params, given):
        outer = {name: part for name, part in params.items() if name != task.stacked}
        x = task.enter(outer, given)
        for number in range(GEMMA_3.layers):
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], params[task.stacked])
            x = task.block(layer, x, given, jnp.int32(number))
        return task.leave(outer, x, given)[0]

    whole = jax.jit(lambda params, given: task.loss({"trainable": params}, None, given, None, train=True)[0])
    for one, other in zip(jax.jit(in_parts)(params, batch()), whole(params, batch()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [GEMMA_3, LLAMA], ids=["gemma3", "llama"])
def test_it_learns_what_the_whole_update_does(shape):
    whole, metrics = trained(shape, layerwise=0)
    layered, told = trained(shape, layerwise=1)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5), layered, whole)
    assert {name: float(value) for name, value in told.items()} == pytest.approx(
        {name: float(value) for name, value in metrics.items()}, rel=1e-5
    )
