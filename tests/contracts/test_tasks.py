"""Every recipe's task gives finite sums that add up over any split, and starts the same from the same key."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.recipes.finetune.task import Blank, Published
from plimsoll.recipes.recipe import KINDS
from plimsoll.recipes.recommend.item_reader import Side
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import COUNTED, STATE, Compute, Levers, LossSum
from task_examples import OWN, RECIPES, TWINS, random_batch

EXAMPLES = 8


def test_every_kind_and_preset_is_held_here():
    assert set(RECIPES) | set(TWINS) == set(PRESETS)
    for name, other in TWINS.items():
        one, two = preset(name), preset(other)
        assert (one.kind, one.hints.levers) == (two.kind, two.hints.levers)
        assert one.options.get("variant") == two.options.get("variant")
    assert {make().kind for make in RECIPES.values()} == {*KINDS.values()}


TWICE = ("recommend", "sudoku-attention", "peptide_irt", "flax_nnx", "flax_linen")
"""Recipes whose code is nearly that of another one: of recommend around a frozen model, of puzzles by an MLP, and among
examples of one's own."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in TWICE else ()) for name in [*RECIPES, *OWN]],
)
def recipe(request):
    return (RECIPES | OWN)[request.param]()


@pytest.fixture(scope="module", autouse=True)
def weights_of_a_file():
    """Random numbers stand for the weights that a published model's file has: before they are read they are zeros.

    And for those of a product that begins with zeros, behind which nothing has a gradient in the first step.
    """
    zeros = Side.init

    def learned(side, key):
        params = zeros(side, key)
        return params | {"said": {"kernel": 0.1 * jax.random.normal(key, params["said"]["kernel"].shape)}}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Blank, "init", Published.init)
        patched.setattr(Side, "init", learned)
        yield


@pytest.fixture(scope="module")
def task(recipe):
    return recipe.task(Compute())


@pytest.fixture(scope="module")
def init(task):
    return jax.jit(task.init)


@pytest.fixture(scope="module")
def params(init):
    return init(jax.random.key(1))


@pytest.fixture(scope="module")
def sums(task, params):
    @jax.jit
    def loss(batch, keys):
        loss, _, metrics = task.loss(params, None, batch, keys, train=True)
        after = metrics.pop(STATE, LossSum({}, jnp.int32(0)))  # sums of a pytree: tests/recipes/own/test_state.py
        assert jax.tree.structure(after.total) == jax.tree.structure(params.get(STATE, {}))
        return metrics | {"loss": loss}

    def of(batch, *, start=0):
        examples = len(next(iter(batch.values())))
        return loss(batch, jax.vmap(jax.random.key)(jnp.arange(start, start + examples, dtype=jnp.uint32)))

    return of


def test_sums_are_finite_float32_scalars_and_the_loss_has_a_weight_above_zero(recipe, sums):
    told = sums(random_batch(recipe, EXAMPLES))
    assert told["loss"].weight > 0
    for name, pair in told.items():
        assert isinstance(pair, LossSum), name
        for value in pair:
            assert value.shape == ()
            assert value.dtype == np.float32
            assert np.isfinite(value)
        assert pair.weight >= 0  # a metric may have nothing to count in this step


def test_sums_add_up_over_a_split(recipe, sums):
    batch = random_batch(recipe, EXAMPLES)
    cut = EXAMPLES // 2
    whole = sums(batch)
    first = sums({name: value[:cut] for name, value in batch.items()})
    rest = sums({name: value[cut:] for name, value in batch.items()}, start=cut)
    for name in whole:
        assert float(first[name].total + rest[name].total) == pytest.approx(float(whole[name].total), rel=1e-5)
        assert first[name].weight + rest[name].weight == whole[name].weight


def test_the_loss_moves_with_the_batch_and_with_the_parameters(recipe, task, params, sums):
    one, other = (sums(random_batch(recipe, EXAMPLES, seed=seed))["loss"].total for seed in (0, 1))
    assert one != other
    batch, keys = random_batch(recipe, EXAMPLES), jax.vmap(jax.random.key)(jnp.arange(EXAMPLES, dtype=jnp.uint32))

    @jax.jit
    @jax.grad
    def gradient(trainable):
        return task.loss(params | {"trainable": trainable}, None, batch, keys, train=True)[0].total

    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient(params["trainable"]))[0]:
        assert np.isfinite(leaf).all(), path
        assert np.any(leaf != 0), f"{jax.tree_util.keystr(path)} is never learned"


def test_the_key_decides_the_parameters(init, params):
    same, other = init(jax.random.key(1)), init(jax.random.key(2))
    assert params.keys() <= {"trainable", "frozen", "tables", STATE}
    for one, again in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(one, again)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other), strict=True))


def test_the_plan_changes_no_shape_and_no_starting_value(recipe, params):
    """A run that is planned anew, or restored under another plan, must find the same leaves."""
    other = recipe.task(Compute(platform="tpu", levers=Levers(precision="bfloat16", remat="block", loss_chunk=16)))
    again = jax.jit(other.init)(jax.random.key(1))
    assert jax.tree.structure(again) == jax.tree.structure(params)
    for one, leaf in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, leaf)


def test_evaluation_is_the_same_twice(recipe, task, params):
    loss = jax.jit(lambda batch, keys: task.loss(params, None, batch, keys, train=False)[0].total)
    batch = random_batch(recipe, EXAMPLES)
    keys = [jax.vmap(jax.random.key)(jnp.arange(start, start + EXAMPLES, dtype=jnp.uint32)) for start in (0, 99)]
    assert loss(batch, keys[0]) == loss(batch, keys[1])  # nothing is dropped, so nothing depends on the keys


@pytest.mark.parametrize("name", ["equinox_mlp", "plain_jax"])
def test_a_users_loss_learns_the_same_however_the_batch_is_split(name):
    recipe = OWN[name]()
    task, batch = recipe.task(Compute()), random_batch(recipe, EXAMPLES)
    sgd = optax.sgd(0.1)  # Adam divides by the gradient, and would blow rounding up
    state = jax.jit(make_init(task, sgd))(np.uint32(3))
    learned = {n: jax.jit(make_step(task, sgd, StepSpec(accumulation=n)))(state, batch)[0]["params"] for n in (1, 4)}
    for one, leaf in zip(jax.tree.leaves(learned[1]), jax.tree.leaves(learned[4]), strict=True):
        np.testing.assert_allclose(leaf, one, rtol=1e-6, atol=1e-6)
    for one, leaf in zip(jax.tree.leaves(state["params"]), jax.tree.leaves(learned[1]), strict=True):
        assert (one != leaf).any()


@pytest.mark.parametrize("name", ["etth1", "plain_jax"])
def test_copies_that_fill_up_a_validation_batch_do_not_count(name):
    recipe = OWN[name]()
    task, batch = recipe.task(Compute()), random_batch(recipe, EXAMPLES)
    params = jax.jit(task.init)(jax.random.key(1))

    @jax.jit
    def sums(batch, keys):
        loss, _, metrics = task.loss(params, None, batch, keys, train=False)
        return metrics | {"loss": loss}

    keys = jax.vmap(jax.random.key)(jnp.arange(EXAMPLES, dtype=jnp.uint32))
    expected = sums({name: rows[:5] for name, rows in batch.items()}, keys[:5])
    counted = sums(batch | {COUNTED: np.arange(EXAMPLES) < 5}, keys)
    for name, pair in expected.items():
        np.testing.assert_allclose(counted[name], pair, rtol=1e-5)
