"""The feed-forward part in chunks of positions: the same numbers, fewer bytes, and a lever that says where it goes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.errors import RecipeError
from plimsoll.levers.lever import Problem
from plimsoll.levers.lora import LoRA
from plimsoll.levers.records.mlp_chunk import MLP_CHUNK, chunks_of
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.finetune.task import Published
from plimsoll.types import Compute, Levers

SHAPE = DecoderShape(
    architecture="llama", vocab=64, width=32, layers=1, heads=2, key_heads=1, head_width=16, inner=96,
    norm_epsilon=1e-6, tied=False,
)  # fmt: skip


def problem(**fields):
    return Problem(**{
        "recipe": "text", "chip": "h100", "platform": "cuda", "effective_batch": 8, "numerics": "mixed",
        "supported": ("mlp_chunk",), "loss_chunks": (),
    } | fields)  # fmt: skip


def loss_of(chunk, *, dropout):
    """Loss of an adapted model, of parameters and keys."""
    compute = Compute(levers=Levers(remat="block", mlp_chunk=chunk))
    task = LoRA(Published(SHAPE, compute, frozen=True), "q,gate", rank=2, dropout=dropout)
    ids = np.random.default_rng(0).integers(0, SHAPE.vocab, (2, 22)).astype(np.int32)
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}

    def loss(learned, params, keys):
        return task.loss(params | {"trainable": learned}, None, batch, keys, train=True)[0].total

    return task, loss


@pytest.mark.slow_except("4-0.3")
@pytest.mark.parametrize(("chunk", "dropout"), [(4, 0.3), (32, 0.0)])  # of 21: with a rest, more
def test_chunks_change_neither_loss_nor_gradients_nor_what_is_dropped(chunk, dropout):
    task, whole = loss_of(0, dropout=dropout)
    params, keys = jax.jit(task.init)(jax.random.key(0)), jax.vmap(jax.random.key)(jnp.arange(2))
    learned = jax.tree.map(lambda leaf: leaf + 0.05, params["trainable"])
    expected = jax.jit(jax.value_and_grad(whole))(learned, params, keys)
    found = jax.jit(jax.value_and_grad(loss_of(chunk, dropout=dropout)[1]))(learned, params, keys)
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found[1], expected[1])


def test_the_planner_tries_the_chunks_that_a_recipe_names():
    assert MLP_CHUNK.tried(problem(mlp_chunks=chunks_of(8_192)), None) == [0, 2_048, 512]
    assert MLP_CHUNK.tried(problem(mlp_chunks=chunks_of(1_024)), None) == [0, 512]
    assert chunks_of(512) == ()
    assert MLP_CHUNK.tried(problem(supported=(), mlp_chunks=(512,)), None) == [0]


def test_chunks_go_with_blocks_that_are_computed_again():
    assert MLP_CHUNK.goes_with is not None
    assert [MLP_CHUNK.goes_with({"mlp_chunk": 512, "remat": remat}, {}) for remat in ("none", "dots", "block")] == [
        False, False, True,
    ]  # fmt: skip
    with pytest.raises(RecipeError, match="--mlp-chunk 512 is refused with --remat none"):
        MLP_CHUNK.tried(problem(pins={"mlp_chunk": 512, "remat": "none"}), None)
