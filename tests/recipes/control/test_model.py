"""The network that imitates controllers: what it sees, its loss, its dropout."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.control.imitator import GAIN_UNIT, Imitating, token_features
from plimsoll.recipes.control.model import Imitator
from plimsoll.recipes.specs import WindowSpec
from plimsoll.types import Compute

STRICT = True

SPEC = WindowSpec(
    arrays={"inputs": ((8, 19), "float32"), "controls": ((6,), "float32")},
    families=tuple(f"system {number}" for number in range(35)),
    states=12,
)
PUBLISHED = {"network": "published", "error_floor": 0.0}


@cache
def task_of(**changed):
    options = {"width": 16, "heads": 2, "layers": 2, "inner": 32} | PUBLISHED | changed
    return Imitating(Imitator(**options), SPEC, Compute())


@cache
def params_of(task):
    return jax.jit(task.init)(jax.random.key(0))


@cache
def loss_of(task, *, train):
    return jax.jit(partial(task.loss, train=train))


def total(task, batch, *, train, params=None, keys=None):
    params = params_of(task) if params is None else params
    keys = keys_of(len(batch["inputs"])) if keys is None else keys
    return float(loss_of(task, train=train)(params, None, batch, keys)[0].total)


def batch_of(examples=5, length=8):
    random = np.random.default_rng(0)
    masks = (np.arange(6) < random.integers(1, 7, examples)[:, None]).astype(np.float32)
    return {
        "inputs": random.standard_normal((examples, length, 19)).astype(np.float32),
        "controls": masks * random.standard_normal((examples, 6)).astype(np.float32),
        "masks": masks,
        "family": np.arange(examples, dtype=np.int32) % 3,
    }


def alone(batch):
    """Its examples, in batches of one."""
    return [{name: values[i : i + 1] for name, values in batch.items()} for i in range(5)]


def keys_of(examples=5):
    return jax.vmap(jax.random.key)(jnp.arange(examples, dtype=jnp.uint32))


def test_saying_zero_costs_the_mean_square_and_explains_nothing():
    task, batch = task_of(), batch_of()
    params = jax.tree.map(jnp.zeros_like, params_of(task))
    loss, _, metrics = loss_of(task, train=False)(params, None, batch, keys_of())
    assert float(loss.total) == pytest.approx(float((batch["controls"] ** 2).sum()), rel=1e-5)
    assert float(loss.weight) == batch["masks"].sum()
    for family in range(3):
        errors, powers = metrics[f"unexplained_{family}"]
        assert float(errors) == pytest.approx(float(powers))
    assert float(metrics["unexplained_3"].weight) == 0


def test_a_control_that_is_not_there_changes_nothing():
    task, batch = task_of(), batch_of()
    other = batch | {"controls": batch["controls"] + 7 * (1 - batch["masks"])}
    assert total(task, batch, train=True) == total(task, other, train=True)


def test_dropout_is_on_in_training_only_and_each_example_has_its_own():
    task, batch, dry = task_of(dropout=0.5), batch_of(), task_of()
    assert total(task, batch, train=False) == total(dry, batch, train=True)
    assert total(task, batch, train=True) != total(dry, batch, train=True)
    parts = [total(task, one, train=True, keys=keys_of()[i : i + 1]) for i, one in enumerate(alone(batch))]
    assert sum(parts) == pytest.approx(total(task, batch, train=True), rel=1e-5)


def gain_task(patch=4):
    return task_of(network="gain", patch=patch)


def windows_with_a_code():
    """Features that are no states are the same at all times, as a system's code is."""
    inputs = batch_of()["inputs"]
    inputs[:, :, 12:] = inputs[:, :1, 12:]
    return inputs


def test_a_gain_is_multiplied_with_the_last_state():
    task, inputs = gain_task(), windows_with_a_code()
    predicted, weights = jax.jit(task.predicted), params_of(task)["trainable"]
    gain = np.random.default_rng(1).standard_normal((6, 12)).astype(np.float32)
    leave = {"kernel": jnp.zeros_like(weights["leave"]["kernel"]), "bias": jnp.asarray(gain.ravel() / GAIN_UNIT)}
    found = predicted(weights | {"leave": leave}, inputs)
    np.testing.assert_allclose(found, inputs[:, -1, :12] @ gain.T, rtol=1e-5, atol=1e-5)
    begun = predicted(weights, 0.05 * inputs)
    assert 0.01 < float(jnp.abs(begun).mean()) < 0.5  # near zero, but not at it


def test_time_steps_of_a_token_must_only_lie_together():
    for patch in (1, 8):
        task = gain_task(patch)
        weights = jax.eval_shape(task.init, jax.random.key(0))["trainable"]
        assert weights["enter"]["kernel"].shape == (token_features(19, states=12, patch=patch), 16)
        assert jax.eval_shape(task.predicted, weights, windows_with_a_code()).shape == (5, 6)


def test_large_controls_count_less_in_training_and_as_ever_in_an_evaluation():
    batch, plain, softened = batch_of(), task_of(), task_of(error_floor=0.5)
    squared = np.array([total(plain, one, train=True) for one in alone(batch)])
    power = (batch["masks"] * batch["controls"] ** 2).sum(axis=1) / batch["masks"].sum(axis=1)
    loss = loss_of(softened, train=True)(params_of(plain), None, batch, keys_of())[0]
    assert float(loss.total) == pytest.approx((squared / np.sqrt(power + 0.5**2)).sum(), rel=1e-5)
    assert float(loss.weight) == batch["masks"].sum()
    for task in (plain, softened):
        assert total(task, batch, train=False) == pytest.approx(squared.sum())
