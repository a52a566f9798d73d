"""LoRA begins as the frozen model, learns nothing but its factors, and holds nothing for the rest."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.errors import RecipeError
from plimsoll.levers.frozen import widened
from plimsoll.levers.lora import LoRA
from plimsoll.models.language import NextToken
from plimsoll.models.sizing import DecoderShape
from plimsoll.training.program import tree_bytes
from plimsoll.training.step import make_init, make_step
from plimsoll.types import Compute

SHAPE = DecoderShape(vocab=128, width=64, layers=2, heads=2, inner=128, tied=True)
ATTENTION = ("blocks/(query|value)/kernel",)


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def base(remat="none"):
    return NextToken(SHAPE, Compute(remat=remat))


def batch(examples=4):
    ids = np.random.default_rng(0).integers(0, 128, (examples, 17)).astype(np.int32)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def loss_of(task, params):
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    return task.loss(params, None, batch(), keys, train=True)[0].total


def test_it_begins_as_the_frozen_model():
    task = LoRA(base(), ATTENTION, rank=4)
    params = jax.jit(task.init)(jax.random.key(0))
    plain = jax.jit(partial(loss_of, base()))({"trainable": params["frozen"]["base"]})
    np.testing.assert_allclose(jax.jit(partial(loss_of, task))(params), plain, rtol=1e-6)


@pytest.mark.slow_except("none-8")
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("remat", ["none", "block"])
def test_only_the_factors_are_learned_and_the_frozen_weights_take_so_many_bits(bits, remat):
    task, optimizer = LoRA(base(remat), ATTENTION, rank=4), optax.adam(1e-2)
    state = jax.jit(make_init(task, optimizer, frozen_bits=bits))(np.uint32(0))
    step = jax.jit(make_step(task, optimizer, accumulation=2))
    frozen = jax.device_get(state["params"]["frozen"])
    losses = []
    for _ in range(20):
        state, metrics = step(state, batch())
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state["params"]["frozen"]), frozen)
    learned = tree_bytes(state["params"]["trainable"])
    assert learned == 4 * 2 * 2 * (64 * 4 + 4 * 64)
    assert tree_bytes(state["optimizer"]) == 2 * learned + 4  # two moments of the factors, and the count


def test_the_gradient_is_that_of_the_factors_in_the_merged_weights():
    task = LoRA(base(), ATTENTION, rank=4, alpha=8.0)
    params = jax.jit(task.init)(jax.random.key(1))
    factors = jax.tree.map(lambda leaf: leaf + 0.01, params["trainable"])
    frozen = params["frozen"]["base"]

    def merged(factors):
        def one(name, leaf):
            pair = factors.get(f"blocks/{name}/kernel")
            return leaf if pair is None else leaf + 2.0 * pair["a"] @ pair["b"]

        blocks = frozen["blocks"]
        changed = {name: blocks[name] | {"kernel": one(name, blocks[name]["kernel"])} for name in ("query", "value")}
        return frozen | {"blocks": blocks | changed}

    ours = jax.jit(jax.grad(lambda factors: loss_of(task, params | {"trainable": factors})))(factors)
    plain = jax.jit(jax.grad(lambda factors: loss_of(base(), {"trainable": merged(factors)})))(factors)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, plain)


def test_what_matches_nothing_or_no_kernel_is_refused_with_the_names():
    with pytest.raises(RecipeError, match="blocks/query/kernel"):
        LoRA(base(), ["nothing"], rank=2).init(jax.random.key(0))
    with pytest.raises(RecipeError, match="at most 64"):
        LoRA(base(), ATTENTION, rank=100).init(jax.random.key(0))
    with pytest.raises(RecipeError, match="1 or more"):
        LoRA(base(), ATTENTION, rank=0)


def test_frozen_weights_of_ones_own_loss_are_read_widened():
    tree = {"w": jnp.ones((64, 64))}
    assert widened(tree["w"]) is not None
    np.testing.assert_array_equal(widened(tree["w"], jnp.bfloat16), np.ones((64, 64)))
