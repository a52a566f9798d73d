"""Functions that are given in Python become a recipe: what is refused, and what identifies them."""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import own_functions
from own_functions import data, init, loss, mean, shapes
from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.own import pickled
from plimsoll.recipes.own.functions import form_of, given, require_sound
from plimsoll.recipes.own.pickled import from_saved, is_pickled, require_same
from plimsoll.recipes.saved import to_dict

PARAMS, SHAPES = shapes()


def functions(a_loss=loss, params=PARAMS, batch=SHAPES, optimizer=None, reduction="sum", **fields):
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    return given(a_loss, params, batch, optimizer=optimizer, reduction=reduction, **fields)


def code(*arguments, **options):
    return to_dict(functions(*arguments, **options).recipe(init))["code"]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"x": np.zeros((8, 3)), "y": np.zeros(7)}, r"x \(8, 3\), y \(7,\): the first axis"),
        ({"x": np.zeros((8, 3)), "scale": np.zeros(())}, r"scale \(\), x \(8, 3\): the first axis"),
        ({"x": [1.0, 2.0]}, "x/0 of the batch is a float"),
        ({"x": np.array(["a", "b"])}, "x of the batch is <U1 of shape"),
        ({"x": np.zeros((0, 3))}, "the same number, above 0"),
    ],
)
def test_the_leaves_of_a_batch_must_agree_about_its_examples(batch, said):
    with pytest.raises((DataError, RecipeError), match=said):
        form_of(batch)


@pytest.mark.parametrize("batch", [np.zeros((4, 2)), (np.zeros(4), {"deep": [np.zeros((4, 1))]}), {"x": np.zeros(4)}])
def test_a_batch_is_any_pytree(batch):
    form, examples = form_of(batch)
    assert examples == 4
    again = form.whole(form.named(batch))
    assert jax.tree.structure(again) == jax.tree.structure(batch)
    assert {kind for _, kind in form.spec.values()} == {"float32"}  # 64 bits become 32


def test_what_is_missing_or_no_reduction_is_named():
    with pytest.raises(RecipeError, match="needs params, optimizer too"):
        given(loss, None, SHAPES, optimizer=None, reduction="sum")
    with pytest.raises(RecipeError, match='reduction is "sum" or "mean", got \'max\''):
        functions(reduction="max")


def test_a_mean_needs_its_reduction_and_has_to_be_a_scalar():
    with pytest.raises(RecipeError, match=r'must return two scalars.*float32 of shape \(\).*reduction="mean"'):
        code(mean)
    code(mean, reduction="mean")
    for returned in (jnp.zeros(3), (jnp.zeros(2), 1, 2), "no"):
        with pytest.raises(RecipeError, match='with reduction="mean" a loss returns a scalar'):
            code(lambda params, batch, returned=returned: returned, reduction="mean")


def test_a_mean_of_unequal_weights_is_noticed_on_two_examples():
    def uneven(params, batch):
        weights = 1 + jnp.abs(batch[1])
        return jnp.sum(weights * own_functions.errors(params, batch)) / jnp.sum(weights)

    sound, wrong = (functions(each, reduction="mean").recipe(init, data()) for each in (mean, uneven))
    assert require_sound({"recipe": to_dict(sound)}) == {}
    with pytest.raises(RecipeError, match=r"no sum over examples.*return \(sum, weight\)"):
        require_sound({"recipe": to_dict(wrong)})


def test_a_closure_too_large_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(pickled, "MOST_BYTES", 2**20)
    table = np.zeros((600, 1000), np.float32)

    def held(params, batch):
        return jnp.sum(own_functions.errors(params, batch)) + jnp.asarray(table)[0, 0], 8

    with pytest.raises(RecipeError, match=r"hold more than 1\.0 MiB.*Give arrays as data"):
        code(held)


def test_what_cannot_be_pickled_is_refused(tmp_path):
    file = open(tmp_path / "log", "w")  # noqa: SIM115

    def writes(params, batch):
        file.write("step")
        return loss(params, batch)

    with file, pytest.raises(RecipeError, match=r"cannot be handed to the processes.*leave open files"):
        code(writes)


def test_an_optimizer_whose_state_cannot_be_shaped_is_refused():
    broken = optax.GradientTransformation(lambda params: {"first": params["no such"]}, lambda g, s, p: (g, s))
    with pytest.raises(RecipeError, match=r"the optimizer, given the shapes of the parameters, of .* failed"):
        code(optimizer=broken)


@pytest.mark.parametrize("optimizer", [optax.adamw, partial(optax.adamw, b1=0.8)])
def test_an_optimizer_that_was_not_called_is_refused(optimizer):
    """It would get the number of steps as its learning rate."""
    with pytest.raises(RecipeError, match=r"adamw\(1e-3\)"):
        functions(optimizer=optimizer).recipe(init)


def test_an_init_that_fails_is_told_by_its_line():
    with pytest.raises(RecipeError, match=r"^init of .* failed: ZeroDivisionError.*\n  .*test_functions\.py"):
        functions().recipe(lambda key: 1 / 0)


def test_parameters_of_64_bits_and_a_partial_function_are_what_jax_and_its_function_make_of_them():
    wide = jax.tree.map(lambda leaf: np.zeros(leaf.shape), PARAMS)
    assert functions(params=wide).params == functions().params
    assert functions(partial(loss)).recipe(init).origin.short_name == "own_functions"


def test_an_init_of_other_parameters_is_refused():
    with pytest.raises(RecipeError, match=r"float32\[2\].*and the plan is of .*float32\[3, 16\]"):
        functions().recipe(lambda key: jnp.zeros(2))
    with pytest.raises(RecipeError, match="rate of the parameters is a float: give arrays of numbers, or their shapes"):
        functions(params={"rate": 0.5})


def test_functions_are_identified_by_what_they_compute():
    factor = 1.0

    def other_words(weights, examples):
        points, values = examples
        squares = factor * jnp.square(jnp.tanh(points @ weights["hidden"]) @ weights["out"] - values)
        return jnp.sum(squares), squares.size

    first, second = code(other_words, optimizer=optax.sgd(0.1)), code(optimizer=optax.sgd(0.1, momentum=0.9))
    assert first["init"] == second["init"]
    assert first["loss"] != second["loss"]
    assert first["optimizer"] != second["optimizer"]
    factor = 2.0
    assert code(other_words)["loss"] != first["loss"]
    assert code(other_words, batch_size=64)["loss"] == code(other_words)["loss"]


IN_ANOTHER = """
import jax
from own_functions import *
import optax
from jax._src import xla_bridge
from plimsoll.recipes.own.functions import given
from plimsoll.recipes.saved import to_dict
key = jax.ShapeDtypeStruct((), "uint32")
shapes = jax.eval_shape(lambda seed: init(jax.random.key(seed)), key)
batch = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in data(8))
saved = to_dict(given(loss, shapes, batch, optimizer=optax.adam(1e-2), reduction="sum").recipe(init))
assert not xla_bridge._backends, "a device was started"
print(saved["code"])
"""


def test_another_process_finds_the_same_and_no_device_is_started_for_it():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=IN_ANOTHER, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(code()), done.stderr


EQUINOX = """
import equinox as eqx
import jax, jax.numpy as jnp, optax
from own_functions import data
from plimsoll.processes.request import ask
from plimsoll.recipes.own.functions import given
from plimsoll.recipes.saved import to_dict

class Scaled(eqx.Module):
    linear: eqx.nn.Linear
    power: int = eqx.field(static=True, default=2)
    def __init__(self, key):
        self.linear = eqx.nn.Linear(3, 1, key=key)
    def __call__(self, point):
        return self.linear(point)[0]

class Twice(Scaled):
    again: eqx.nn.Linear
    def __init__(self, key):
        super().__init__(key)
        self.again = eqx.nn.Linear(1, 1, key=key)

def init(key):
    return eqx.filter(Twice(key), eqx.is_inexact_array)

rest = eqx.filter(Twice(jax.random.key(0)), eqx.is_inexact_array, inverse=True)  # which does not set `power`

def loss(params, batch):
    points, values = batch
    model = eqx.combine(params, rest)
    return jnp.mean(jnp.abs(jax.vmap(model)(points) - values) ** model.power)

params = jax.eval_shape(init, jax.random.key(0))
batch = tuple(leaf[:8] for leaf in data())
recipe = given(loss, params, batch, optimizer=optax.sgd(0.1), reduction="mean").recipe(init, data())
print(ask("require_sound", {"recipe": to_dict(recipe)}))
"""


@pytest.mark.slow
def test_an_equinox_module_of_the_program_itself_reaches_the_other_processes():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=EQUINOX, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "{}", done.stderr


def test_a_recipe_of_another_program_is_never_unpickled(tmp_path, monkeypatch):
    saved = to_dict(functions().recipe(init, data()))
    assert from_saved(saved).effective_batch == 8
    elsewhere = saved | {"code": dict.fromkeys(saved["code"], "0" * 64)}
    with pytest.raises(RecipeError, match=r"no run holds their code: call plimsoll\.plan\(loss, \.\.\.\)\.train\("):
        from_saved(elsewhere)
    (tmp_path / "open").mkdir(mode=0o755)
    key = pickled._keys(elsewhere)[0]
    (tmp_path / "open" / f"{key}.pickle").write_bytes(b"[]\nwhatever")
    monkeypatch.setenv(pickled.VARIABLE, str(tmp_path / "open"))
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RecipeError, match="no code is taken from there"):
        from_saved(elsewhere)


def test_parts_of_a_package_are_no_pickle():
    assert not is_pickled(
        {"kind": "bigrams+text", "parts": {"model": "bigrams"}, "fields": {}, "code": {"bigrams": "0"}}
    )
    assert is_pickled(to_dict(functions().recipe(init, data())))


def test_other_functions_or_data_do_not_continue_a_run(tmp_path):
    was = to_dict(functions().recipe(init, data()))
    require_same(was, to_dict(functions().recipe(init, data())), run=tmp_path)
    with pytest.raises(RecipeError, match="is a run of another optimizer: its content when the run began"):
        require_same(was, to_dict(functions(optimizer=optax.sgd(1.0)).recipe(init, data())), run=tmp_path)
    with pytest.raises(RecipeError, match="is a run of another data"):
        require_same(was, to_dict(functions().recipe(init, data(seed=1))), run=tmp_path)


def test_data_is_arrays_of_the_batch_s_pytree_or_what_has_a_place(tmp_path):
    points, values = data()
    np.save(tmp_path / "points.npy", points)
    mapped = np.load(tmp_path / "points.npy", mmap_mode="r")
    for given_data in ((points, values), (mapped, jnp.asarray(values)), lambda: {"0": points, "1": values}):
        recipe = functions().recipe(init, given_data)
        batch = next(iter(recipe.open(tmp_path).source(prefetch=0)))
        assert {name: leaf.shape for name, leaf in batch.items()} == {"0": (8, 3), "1": (8,)}
    with pytest.raises(DataError, match=r"data is a generator: give arrays"):
        functions().recipe(init, (each for each in points))
    with pytest.raises(DataError, match=r"0 in data has shape and type \(\(4,\), .* for \(\(3,\), 'float32'\)"):
        functions().recipe(init, (np.zeros((9, 4), np.float32), values[:9]))
    with pytest.raises(DataError, match=r"1 in data has shape and type \(\(\), 'int32'\), .* for \(\(\), 'float"):
        functions().recipe(init, (points, np.zeros(80, int)))
