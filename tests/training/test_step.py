"""The step learns the same whatever the micro-batches are, holds its state once, and runs the forward pass once."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.levers.chunked_loss import IGNORE
from plimsoll.optimizers.adamw import AdamW
from plimsoll.planner.flops import dot_flops
from plimsoll.training.reports import numbers_of
from plimsoll.training.step import StepSpec, make_evaluate, make_init, make_step
from small_tasks import (
    DroppedRegression,
    LinearRegression,
    decoder_task,
    regression_batch,
    relative_distance,
    text_batch,
)

SPLITS = [2, 8]


def recording():
    """An optimizer whose state is the gradient it was given: what the step computed, without an update after it."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda gradient, state, params=None: (jax.tree.map(jnp.zeros_like, gradient), gradient),
    )


@cache
def jitted_init(make_task, make_optimizer):
    return jax.jit(make_init(make_task(), make_optimizer()))


@cache
def jitted_step(make_task, make_optimizer, accumulation):
    return jax.jit(make_step(make_task(), make_optimizer(), StepSpec(accumulation=accumulation)), donate_argnums=0)


def taken(make_task, make_optimizer, batches, *, accumulation, seed=3):
    """State and the metrics of every step."""
    state = jitted_init(make_task, make_optimizer)(np.uint32(seed))
    step = jitted_step(make_task, make_optimizer, accumulation)
    reports = []
    for batch in batches:
        state, metrics = step(state, batch)
        reports.append(numbers_of(jax.device_get(metrics)))
    return jax.device_get(state), reports


def descent():
    return optax.sgd(0.1)


def adamw(steps=20):
    # Epsilon well above rounding: Adam divides near-zero gradients by their own size, which would test noise.
    inner = AdamW(learning_rate=3e-3, warmup_steps=2, clip_norm=1.0, epsilon=1e-5).rule(steps)

    def update(gradient, state, params=None):
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by its int32 count
            return inner.update(gradient, state, params)

    return optax.GradientTransformation(inner.init, update)


@pytest.mark.parametrize("accumulation", SPLITS)
def test_micro_batches_of_unequal_weight_give_the_gradient_of_the_whole_batch(accumulation):
    """The loss is the mean over counted tokens."""
    task, batch = decoder_task(), text_batch()
    state, (reported,) = taken(decoder_task, recording, [batch], accumulation=accumulation)
    expected, (expected_reported,) = taken(decoder_task, recording, [batch], accumulation=1)
    assert relative_distance(state["optimizer"], expected["optimizer"]) < 1e-6
    assert reported["gradient_norm"] == pytest.approx(expected_reported["gradient_norm"], rel=1e-6)
    assert reported["weight"] == np.sum(batch["labels"] != IGNORE)
    keys = jax.vmap(jax.random.key)(jnp.zeros(16, jnp.uint32))
    loss, _, _ = task.loss(state["params"], None, batch, keys, train=True)
    assert reported["loss"] == pytest.approx(float(loss.total / loss.weight), rel=1e-6)


def test_twenty_steps_end_at_the_same_parameters_whatever_the_split():
    batches = [text_batch(seed=seed) for seed in range(20)]
    state, reported = taken(decoder_task, adamw, batches, accumulation=4)
    expected, expected_reported = taken(decoder_task, adamw, batches, accumulation=1)
    assert relative_distance(state["params"], expected["params"]) < 1e-5
    assert [one["weight"] for one in reported] == [one["weight"] for one in expected_reported]
    np.testing.assert_allclose([t["loss"] for t in reported], [t["loss"] for t in expected_reported], rtol=1e-5)
    assert state["step"] == 20


def test_the_weight_pass_costs_no_forward_pass():
    """Three passes' worth of dots: forward, and two in backward. A second forward would be a third more."""
    task, optimizer, batch = decoder_task(), adamw(), text_batch()
    state = jax.eval_shape(make_init(task, optimizer), jax.ShapeDtypeStruct((), jnp.uint32))
    traced = jax.jit(make_step(task, optimizer, StepSpec(accumulation=4))).trace(state, batch)
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((16,), jnp.uint32))
    forward = jax.jit(lambda p, b, k: task.loss(p, None, b, k, train=True)[0]).trace(state["params"], batch, keys)
    assert dot_flops(traced.jaxpr) == 3 * dot_flops(forward.jaxpr)


def test_what_a_key_drops_does_not_depend_on_the_split():
    batches = [regression_batch(seed=seed) for seed in range(5)]
    whole, _ = taken(DroppedRegression, descent, batches, accumulation=1)
    split, _ = taken(DroppedRegression, descent, batches, accumulation=4)
    assert relative_distance(split["params"]["trainable"], whole["params"]["trainable"]) < 1e-6


def test_keys_differ_between_examples_and_between_steps():
    class Telling(LinearRegression):
        def loss(self, params, carry, batch, keys, *, train):
            drawn = jax.vmap(jax.random.uniform)(keys)
            loss, carry, metrics = super().loss(params, carry, batch, keys, train=train)
            spread = jnp.max(drawn) - jnp.min(drawn)
            return loss, carry, metrics | {"drawn": loss._replace(total=jnp.sum(drawn)), "spread": loss._replace(
                total=spread, weight=jnp.float32(1))}  # fmt: skip

    _, reported = taken(Telling, descent, [regression_batch()] * 4, accumulation=1)
    assert min(float(one["spread"]) for one in reported) > 0.3  # sixteen equal draws would have none
    assert len({float(one["drawn"]) for one in reported}) == 4


def test_a_plain_pytree_task_trains_and_leaves_its_frozen_part_alone():
    batches = [regression_batch(seed=seed) for seed in range(200)]
    state, reported = taken(LinearRegression, descent, batches, accumulation=4)
    np.testing.assert_allclose(state["params"]["trainable"]["slope"], [1.0, -2.0, 0.5], atol=1e-4)
    assert state["params"]["trainable"]["bias"] == pytest.approx(0.25, abs=1e-4)
    assert state["params"]["frozen"]["scale"] == 1.0
    assert reported[-1]["close"] == 1.0  # metrics are divided by their own weight
    assert reported[0]["loss"] > 1000 * reported[-1]["loss"]


def test_evaluation_returns_sums_and_does_not_train():
    task, batch = DroppedRegression(), regression_batch()
    params = task.init(None)
    sums = jax.jit(make_evaluate(task))(params, batch)
    assert float(sums["loss"].total) == pytest.approx(float(np.sum(batch["y"] ** 2)), rel=1e-6)  # nothing dropped
    assert float(sums["loss"].weight) == 16


def test_the_seed_decides_the_start_and_nothing_else_does():
    init = jitted_init(decoder_task, adamw)
    one, same, other = (jax.device_get(init(np.uint32(seed))) for seed in (1, 1, 2))
    assert relative_distance(one["params"], same["params"]) == 0
    assert relative_distance(one["params"], other["params"]) > 0.1
    assert not np.array_equal(one["key"], other["key"])


def test_with_float16_a_step_that_overflows_changes_nothing_but_the_scale_and_its_number():
    task, optimizer = LinearRegression(), optax.sgd(1e-2, momentum=0.9)
    state = jax.jit(make_init(task, optimizer, precision="float16"))(np.uint32(0))
    step = jax.jit(make_step(task, optimizer, StepSpec(accumulation=2)))
    batch = regression_batch()
    kept = ("params", "optimizer")
    after, metrics = step(state, batch)
    plain = {name: leaf for name, leaf in state.items() if name != "loss_scale"}
    without, plain_metrics = step(plain, batch)
    np.testing.assert_allclose(metrics["loss"], plain_metrics["loss"], rtol=1e-6)
    for name in kept:  # powers of two round nothing
        jax.tree.map(np.testing.assert_array_equal, after[name], without[name])

    overflowing = state | {"loss_scale": state["loss_scale"]._replace(scale=jnp.float32(1e38))}
    skipped, metrics = step(overflowing, jax.tree.map(lambda x: x * np.float32(1e3), batch))
    assert not np.isfinite(metrics["gradient_norm"])
    for name in kept:
        jax.tree.map(np.testing.assert_array_equal, skipped[name], state[name])
    assert (int(skipped["step"]), int(metrics["skipped_steps"])) == (1, 1)
    assert float(skipped["loss_scale"].scale) == pytest.approx(5e37)
