# ruff: noqa: E501 (a case is a line)
"""What a user's recipe must keep to: scalar sums, finite, of arrays; said before anything is trained."""

import sys

import h5py
import jax
import numpy as np
import optax
import pytest

import plimsoll
import toy_lever
from own_files import with_, write
from plimsoll.api.plan import plan
from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.own.files import keep_source
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Compute, Levers


@pytest.fixture(autouse=True)
def _path_as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def own(folder, **functions):
    return preset(write(folder, with_(**functions)))


def trace(recipe):
    """What the compile child does first: shapes only."""
    task = recipe.task(Compute())
    state = jax.eval_shape(make_init(task, optax.sgd(0.1)), jax.ShapeDtypeStruct((), "uint32"))
    batch = {n: jax.ShapeDtypeStruct(shape, dtype) for n, (shape, dtype) in recipe.spec.batch(8).items()}
    jax.eval_shape(make_step(task, optax.sgd(0.1), StepSpec(accumulation=2)), state, batch)


UNTRACEABLE = {
    "one number": ({"loss": "lambda p, b: jnp.sum(p['slope'])"}, "must return two scalars", "it returned float32 of shape ()"),
    "no sum": ({"loss": "lambda p, b: (b['y'] * p['bias'], 8)"}, "must return two scalars", "its loss is (float32 of shape (4,), a int)"),
    "no numbers": ({"loss": "lambda p, b: (p['bias'], 'x')"}, "its loss is (float32 of shape (), a str)"),
    "metrics that are no pairs": ({"loss": "lambda p, b: (p['bias'], 8, {'a': 1.0})"}, "its a is a float"),
    "a metric called loss": ({"loss": "lambda p, b: (p['bias'], 8, {'loss': (1, 1)})"}, "is called 'loss'"),
    "another argument": ({"loss": "lambda p, b, rng: (p['bias'], 8)"}, "is loss(p, b, rng): it takes", "keys, train, compute"),
    "a mistake": ({"loss": "lambda p, b: (p['slop'], 8)"}, "loss of mine.py failed: KeyError: 'slop'", "mine.py, line"),
    "a number for an array": ({"init": "lambda key: {'w': 1.0}"}, "returns a float at ['w']", "jnp.float32"),
    "a function": ({"init": "lambda key: {'f': jnp.tanh}"}, "only arrays are trained", "eqx.filter"),
    "whole numbers": ({"init": "lambda key: {'n': jnp.arange(3)}"}, "returns int32 at ['n']", 'put what is not learned into "frozen"'),
    "a key": ({"init": "lambda key: {'key': key}"}, "returns key<fry> of shape () at ['key']", "`keys`"),
    "nothing": ({"init": "lambda key: {}"}, "there is nothing to learn"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNTRACEABLE)
def test_what_cannot_be_trained_is_refused_from_its_shapes(tmp_path, case):
    functions, *words = UNTRACEABLE[case]
    with pytest.raises(RecipeError) as refused:
        trace(own(tmp_path, **functions))
    for part in words:
        assert part in str(refused.value)


UNSOUND = {
    "a NaN": ({"loss": "lambda p, b: (jnp.sum(jnp.log(-p['slope'] ** 2)), 1.0 * b['y'].size)"}, "first two examples is nan", "before the first step"),
    "an endless gradient": ({"loss": "lambda p, b: (jnp.sum(jnp.sqrt(0 * p['bias'] * b['y'])), b['y'].size)"}, "gradient's norm nan"),
    "no weight": ({"loss": "lambda p, b: (jnp.sum(p['bias'] * b['y']), 0)"}, "the weight above 0"),
    "a mean": ({"loss": "lambda p, b: (jnp.mean((b['x'] @ p['slope']) ** 2), b['y'].size)"}, "is no sum over examples", "jnp.sum instead of jnp.mean"),
    "a mean of weight 1": ({"loss": "lambda p, b: (jnp.mean((b['x'] @ p['slope']) ** 2), 1)"}, "with the weight 1, and one by one they add up to", "the weight 2"),
    "the whole batch": ({"loss": "lambda p, b: (jnp.sum((b['x'] @ p['slope'] - jnp.mean(b['y'])) ** 2), b['y'].size)"}, "is no sum over examples"),
    "a batch too large": ({"batch_size": 41}, "has 40 examples to train on, fewer than the 41 of one batch: lower --batch-size"),
    "no length": ({"steps": None}, "nothing says how long to train on the data of mine.py: give --steps or --epochs"),
    "no data": ({"data": "lambda: {'x': np.zeros((0, 3)), 'y': np.zeros(0)}"}, "the data of mine.py is empty"),
    "data that fails": ({"data": "lambda: open('/nowhere/x')"}, "data of mine.py failed: FileNotFoundError", "line"),
    "an optimizer that fails": ({"optimizer": "lambda steps: optax.cosine_decay_schedule(1.0, steps - 5)"}, "optimizer of mine.py failed: ValueError", "decay_steps=0"),
    "other validation data": ({"validation_data": "lambda: {'x': np.zeros((2, 3))}"}, "an example of the validation data of mine.py is {'x':"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSOUND)
def test_what_would_go_wrong_is_refused_before_the_first_step(tmp_path, case):
    functions, *words = UNSOUND[case]

    def begin():
        recipe = own(tmp_path, **functions)
        recipe.optimizer.rule(recipe.open(tmp_path / "run").prepare(lambda text: None).steps)

    with pytest.raises((RecipeError, DataError)) as refused:
        begin()
    for part in words:
        assert part in str(refused.value)


def test_what_is_frozen_reaches_the_loss_and_stays(tmp_path):
    recipe = own(
        tmp_path,
        init="lambda key: {'trainable': jnp.ones(3), 'frozen': {'count': jnp.arange(3)}}",
        loss="lambda p, b: (jnp.sum(b['x'] @ (p['trainable'] * p['frozen']['count'])), b['y'].size)",
    )
    task, sgd = recipe.task(Compute()), optax.sgd(0.1)
    state = make_init(task, sgd)(np.uint32(0))
    batch = next(recipe.open(tmp_path).source(prefetch=0))
    after = make_step(task, sgd, StepSpec(accumulation=2))(state, batch)[0]["params"]
    np.testing.assert_array_equal(after["frozen"]["count"], [0, 1, 2])
    assert (after["trainable"] != state["params"]["trainable"]).tolist() == [False, True, True]


def test_preparing_says_what_there_is_and_keeps_the_code(tmp_path):
    said = []
    recipe = own(tmp_path, validation_data="lambda: {'x': np.ones((3, 3)), 'y': np.ones(3)}")
    recipe = recipe.replace(steps=None, epochs=2.0)
    prepared = recipe.open(tmp_path / "run").prepare(said.append)
    assert (prepared.steps, prepared.steps_per_epoch) == (10, 5.0)
    assert prepared.facts["description"] == "40 examples, 3 for validation"
    assert said == ["data: 40 examples, 3 for validation; 10 steps are 2 epochs"]
    keep_source(to_dict(recipe), tmp_path / "run")
    assert (tmp_path / "run/source/mine.py").read_text() == (tmp_path / "mine.py").read_text()


def test_an_hdf5_file_beside_the_recipe_is_found_from_any_folder_before_one_where_you_are(tmp_path, monkeypatch):
    def written(folder, width):
        with h5py.File(folder / "rows.h5", "w") as file:
            file["x"], file["y"] = np.ones((40, width), np.float32), np.ones(40, np.float32)

    elsewhere, home, empty = (tmp_path / name for name in ("elsewhere", "home", "empty"))
    for folder in (elsewhere, home, empty):
        folder.mkdir()
    monkeypatch.chdir(elsewhere)
    data = "lambda: plimsoll.Hdf5('rows.h5', {'x': 'x', 'y': 'y'})"
    written(elsewhere, 4)
    written(home, 3)
    assert own(home, data=data).spec.batch(8)["x"] == ((8, 3), "float32")
    assert own(empty, data=data).spec.batch(8)["x"] == ((8, 4), "float32")


def test_a_lever_of_its_own_is_off_while_its_loss_is_checked(tmp_path):
    cast = "b['x'].astype(compute.lever('norms')) @ p['slope']"
    loss = f"lambda p, b, compute: (jnp.sum(({cast}) ** 2), b['y'].size)"
    with toy_lever.registered():
        recipe = own(tmp_path, loss=loss, supported="('norms',)")
        assert recipe.open(tmp_path / "run").prepare(print).steps == 5


def test_a_lever_that_the_loss_ignores_cannot_be_pinned(tmp_path):
    recipe = own(tmp_path)
    with pytest.raises(RecipeError, match="--remat block would change nothing"):
        plan(recipe, memory="1GiB", pins={"remat": "block"})


def test_a_loss_that_takes_compute_is_told_the_plan(tmp_path):
    recipe = own(
        tmp_path,
        loss="lambda p, b, *, compute: (jnp.sum(p['bias'] * b['y'].astype(compute.precision)), b['y'].size)",
        supported="('precision',)",
    )
    assert recipe.hints.levers == ("precision",)
    task, batch = (
        recipe.task(Compute(levers=Levers(precision="bfloat16"))),
        next(recipe.open(tmp_path).source(prefetch=0)),
    )
    params, keys = jax.jit(task.init)(jax.random.key(0)), jax.random.split(jax.random.key(0), 8)
    assert "bf16" in str(jax.make_jaxpr(lambda p: task.loss(p, None, batch, keys, train=True)[0])(params))


def test_an_average_that_the_optimizer_asks_for_is_the_recipes_own():
    functions = {"init": lambda key: {"w": jax.numpy.zeros(3)}, "loss": lambda params, batch: (params["w"].sum(), 1.0)}
    data = {"x": np.zeros((8, 3), np.float32)}
    given = plimsoll.recipe(**functions, data=lambda: data, optimizer=plimsoll.AdamW(ema_decay=0.9), batch_size=4)
    with pytest.raises(RecipeError, match=r"ema_decay=0\.9, and the average of the weights belongs to the recipe"):
        given.update_rule(10)
    assert given.replace(ema_decay=0.9).update_rule(10)
