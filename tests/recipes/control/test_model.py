"""The network that imitates controllers: its size, what it sees, its loss, its dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.control.model import GAIN_UNIT, Imitator, ImitatorShape, token_features
from plimsoll.types import Compute

STRICT = True

SIZES = {"features": 19, "outputs": 6, "families": 35}


def task_of(**changes):
    sizes = {"width": 16, "heads": 2, "layers": 2, "inner": 32} | changes
    return Imitator(ImitatorShape(**SIZES, **sizes), Compute())


def batch_of(examples=5, length=8):
    random = np.random.default_rng(0)
    masks = (np.arange(6) < random.integers(1, 7, examples)[:, None]).astype(np.float32)
    return {
        "inputs": random.standard_normal((examples, length, 19)).astype(np.float32),
        "controls": masks * random.standard_normal((examples, 6)).astype(np.float32),
        "masks": masks,
        "family": np.arange(examples, dtype=np.int32) % 3,
    }


def keys_of(examples=5):
    return jax.vmap(jax.random.key)(jnp.arange(examples, dtype=jnp.uint32))


@pytest.mark.parametrize(
    ("width", "heads", "layers", "inner", "parameters"),
    [(64, 4, 4, 256, 208_774), (32, 2, 2, 128, 30_086), (256, 8, 6, 1024, 4_771_846)],
)
def test_the_published_sizes_have_the_published_number_of_parameters(width, heads, layers, inner, parameters):
    task = task_of(width=width, heads=heads, layers=layers, inner=inner)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def test_saying_zero_costs_the_mean_square_and_explains_nothing():
    task, batch = task_of(), batch_of()
    params = jax.tree.map(jnp.zeros_like, jax.jit(task.init)(jax.random.key(0)))
    loss, _, metrics = task.loss(params, None, batch, keys_of(), train=False)
    assert float(loss.total) == pytest.approx(float((batch["controls"] ** 2).sum()), rel=1e-5)
    assert float(loss.weight) == batch["masks"].sum()
    for family in range(3):
        assert float(metrics[f"unexplained_{family}"].total) == pytest.approx(
            float(metrics[f"unexplained_{family}"].weight)
        )
    assert float(metrics["unexplained_3"].weight) == 0


def test_the_families_errors_are_the_loss():
    task, batch = task_of(), batch_of()
    loss, _, metrics = task.loss(jax.jit(task.init)(jax.random.key(0)), None, batch, keys_of(), train=False)
    assert float(sum(one.total for one in metrics.values())) == pytest.approx(float(loss.total), rel=1e-5)


def test_a_control_that_is_not_there_changes_nothing():
    task, batch = task_of(), batch_of()
    params = jax.jit(task.init)(jax.random.key(0))
    other = batch | {"controls": batch["controls"] + 7 * (1 - batch["masks"])}
    one, two = (task.loss(params, None, each, keys_of(), train=True)[0].total for each in (batch, other))
    assert one == two


def test_dropout_is_on_in_training_only_and_each_example_has_its_own():
    task, batch = task_of(dropout=0.5), batch_of()
    params, dry = jax.jit(task.init)(jax.random.key(0)), task_of()

    def total(task, batch, *, train, keys=None):
        keys = keys_of() if keys is None else keys
        return float(task.loss(params, None, batch, keys, train=train)[0].total)

    assert total(task, batch, train=False) == total(dry, batch, train=True)
    assert total(task, batch, train=True) != total(dry, batch, train=True)
    parts = [
        total(task, {name: values[i : i + 1] for name, values in batch.items()}, train=True, keys=keys_of()[i : i + 1])
        for i in range(5)
    ]
    assert sum(parts) == pytest.approx(total(task, batch, train=True), rel=1e-5)


def gain_task(**changes):
    return task_of(**{"gain_states": 12, "patch": 4} | changes)


def coded(batch):
    """The batch with features that are no states the same at all times, as a system's code is."""
    inputs = batch["inputs"].copy()
    inputs[:, :, 12:] = inputs[:, :1, 12:]
    return batch | {"inputs": inputs}


def test_a_gain_is_multiplied_with_the_last_state():
    task, batch = gain_task(), coded(batch_of())
    weights = jax.jit(task.init)(jax.random.key(0))["trainable"]
    gain = np.random.default_rng(1).standard_normal((6, 12)).astype(np.float32)
    leave = {"kernel": jnp.zeros_like(weights["leave"]["kernel"]), "bias": jnp.asarray(gain.ravel() / GAIN_UNIT)}
    found = task.predicted(weights | {"leave": leave}, batch["inputs"])
    np.testing.assert_allclose(found, batch["inputs"][:, -1, :12] @ gain.T, rtol=1e-5, atol=1e-5)


def test_a_network_of_gains_begins_near_zero_but_not_at_it():
    task, batch = gain_task(), coded(batch_of())
    said = task.predicted(jax.jit(task.init)(jax.random.key(0))["trainable"], 0.05 * batch["inputs"])
    assert 0.01 < float(jnp.abs(said).mean()) < 0.5


def test_time_steps_of_a_token_must_only_lie_together():
    batch = coded(batch_of())
    for patch in (1, 2, 8):
        weights = jax.jit(gain_task(patch=patch).init)(jax.random.key(0))["trainable"]
        assert weights["enter"]["kernel"].shape == (token_features(19, states=12, patch=patch), 16)
        assert gain_task(patch=patch).predicted(weights, batch["inputs"]).shape == (5, 6)


def test_large_controls_count_less_in_training_and_as_ever_in_an_evaluation():
    batch = batch_of()
    params = jax.jit(task_of().init)(jax.random.key(0))
    plain, softened = task_of(), task_of(error_floor=0.5)
    squared = np.array([
        float(plain.loss(params, None, {n: v[i : i + 1] for n, v in batch.items()}, keys_of()[:1], train=True)[0].total)
        for i in range(5)
    ])  # fmt: skip
    power = (batch["masks"] * batch["controls"] ** 2).sum(axis=1) / batch["masks"].sum(axis=1)
    loss = softened.loss(params, None, batch, keys_of(), train=True)[0]
    assert float(loss.total) == pytest.approx((squared / np.sqrt(power + 0.5**2)).sum(), rel=1e-5)
    assert float(loss.weight) == batch["masks"].sum()
    for task in (plain, softened):
        assert float(task.loss(params, None, batch, keys_of(), train=False)[0].total) == pytest.approx(squared.sum())
