"""The Tiny Recursive Model: its sizes, its start, what its gradient sees, and how slots are filled and given back."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import COUNTED, IGNORED_LABEL, Compute, Levers

STRICT = True

SMALL = Trm(
    variant="attention",
    width=32,
    heads=2,
    layers=1,
    high_cycles=2,
    low_cycles=2,
    puzzle_positions=2,
    halt_max_steps=4,
    halt_exploration=0.0,
)
SPEC = PuzzleSpec(arrays={}, vocab=5, length=16, identifiers=3)
MLP = replace(SMALL, variant="mlp")
BATCH = 6


@cache
def start(model):
    return jax.jit(solver(model).init)(jax.random.key(0))


def batch(seed=0, examples=BATCH):
    random = np.random.default_rng(seed)
    labels = random.integers(0, SPEC.vocab, (examples, SPEC.length)).astype(np.int32)
    labels[random.random(labels.shape) < 0.3] = IGNORED_LABEL
    return {
        "inputs": random.integers(0, SPEC.vocab, (examples, SPEC.length)).astype(np.int32),
        "labels": labels,
        "puzzle_identifiers": random.integers(0, SPEC.identifiers, examples).astype(np.int32),
    }


def keys(examples=BATCH, seed=0):
    return jax.random.split(jax.random.key(seed), examples)


@cache
def solver(model=SMALL, **levers):
    return RecursiveSolver(model, SPEC, Compute(levers=Levers(**levers)))


@cache
def loss_of(task, train=True):
    """Compiled; a task is its own key."""
    return jax.jit(partial(task.loss, train=train))


def with_halting_bias(params, bias):
    trainable = params["trainable"]
    halt = trainable["halt"] | {"bias": jnp.full(2, bias, jnp.float32)}
    return params | {"trainable": trainable | {"halt": halt}}


@pytest.mark.parametrize("model", [SMALL, MLP], ids=["attention", "mlp"])
def test_initial_weights_have_the_deviation_asked_for(model):
    wide = RecursiveSolver(replace(model, width=128), replace(SPEC, vocab=500), Compute())
    params = jax.jit(wide.init)(jax.random.key(0))
    weights = params["trainable"]
    assert float(jnp.std(weights["embedding"])) == pytest.approx(128**-0.5, rel=0.05)
    for kernel in (weights["head"], *jax.tree.leaves(weights["blocks"])):
        assert float(jnp.std(kernel)) == pytest.approx(kernel.shape[0] ** -0.5, rel=0.05)
        assert float(jnp.max(jnp.abs(kernel))) < 2.3 * kernel.shape[0] ** -0.5  # cut off at two of the normal's own
    assert (weights["halt"]["kernel"] == 0).all()
    assert (weights["halt"]["bias"] == -5).all()
    assert (params["tables"]["puzzles"] == 0).all()
    for latent in params["frozen"].values():
        assert float(jnp.std(latent)) == pytest.approx(1, rel=0.2)


def test_a_puzzles_row_lies_on_the_first_position_and_the_next_ones_are_zero():
    task, params = solver(replace(SMALL, puzzle_positions=16)), start(SMALL)
    rows = jnp.ones((BATCH, 32))
    x = task.network.embedded(params["trainable"], batch()["inputs"], rows)
    assert x.shape == (BATCH, 32, 32)
    np.testing.assert_allclose(x[:, 0], 32**0.5, rtol=1e-6)
    assert (x[:, 1:16] == 0).all()
    tokens = 32**0.5 * params["trainable"]["embedding"][batch()["inputs"]]
    np.testing.assert_allclose(x[:, 16:], tokens, rtol=1e-6)


def test_the_gradient_of_the_rounds_before_the_last_is_zero():
    """What a slot carries is read by rounds without gradient only."""
    task, params = solver(), start(SMALL)
    data, carry = batch(), solver().start(BATCH)

    def total(latents):
        held = carry | {"halted": jnp.zeros(BATCH, bool), "high": latents, "low": latents}
        return loss_of(task)(params, held | data, data, keys())[0].total

    latents = jax.random.normal(jax.random.key(1), carry["high"].shape)
    value, slope = jax.jit(jax.value_and_grad(total))(latents)
    assert (slope == 0).all()
    assert abs(float(total(latents + 0.1) - value)) > 1e-6  # they matter all the same


def test_the_gradient_is_that_of_the_last_round_alone():
    weights, latents = start(SMALL)["trainable"], jax.random.normal(jax.random.key(1), (BATCH, 18, 32))
    rounds = {n: solver(replace(SMALL, high_cycles=n)).network for n in (1, 2, 3)}
    high, low = jax.jit(lambda: rounds[2].recursed(weights, latents, latents, latents, learns=False))()

    def last_round(weights):
        return jnp.sum(rounds[1].recursed(weights, high, low, latents, learns=True)[0] ** 3)

    def all_rounds(weights):
        return jnp.sum(rounds[3].recursed(weights, latents, latents, latents, learns=True)[0] ** 3)

    expected, actual = jax.jit(jax.grad(last_round))(weights), jax.jit(jax.grad(all_rounds))(weights)
    for one, leaf in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        np.testing.assert_allclose(leaf, one, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(one))))


def test_a_slot_that_has_not_halted_keeps_its_puzzle_and_one_that_has_takes_the_next():
    task, params = solver(), start(SMALL)
    halted = np.array([True, False] * 3)
    held = task.start(BATCH) | batch(1) | {"halted": halted, "steps": np.full(BATCH, 2, np.int32)}
    after = loss_of(task)(params, held, batch(2), keys())[1]
    for name in ("inputs", "labels", "puzzle_identifiers"):
        np.testing.assert_array_equal(after[name][halted], batch(2)[name][halted])
        np.testing.assert_array_equal(after[name][~halted], batch(1)[name][~halted])
    np.testing.assert_array_equal(after["steps"], np.where(halted, 1, 3))
    rows = task.rows(held, batch(2))["puzzles"]
    np.testing.assert_array_equal(rows, after["puzzle_identifiers"])


def test_a_slot_halts_once_it_wants_to_at_the_last_step_at_most_and_exploring_delays_it():
    eager = with_halting_bias(start(SMALL), 5.0)
    reluctant, told = walk(solver(), start(SMALL))
    assert reluctant == [(1, False), (2, False), (3, False), (4, True), (1, False)]
    assert told == [0, 0, 0, BATCH, 0]  # an answer counts where its slot halts
    assert walk(solver(), eager)[0][0] == (1, True)
    exploring = solver(replace(SMALL, halt_exploration=1.0))
    assert walk(exploring, eager)[0][0] == (1, False)


def walk(task, params):
    """Steps of the first slot, and whether all have halted; the weight of exact answers; of five steps."""
    carry, slots, told = task.start(BATCH), [], []
    for _ in range(5):
        _, carry, metrics = loss_of(task)(params, carry, batch(), keys())
        slots.append((int(carry["steps"][0]), bool(carry["halted"].all())))
        told.append(float(metrics["exact_accuracy"].weight))
    return slots, told


@pytest.mark.parametrize("bias", [-5.0, 5.0])
def test_evaluation_takes_all_its_steps_whatever_wants_to_halt(bias):
    params = with_halting_bias(start(SMALL), bias)
    task = solver()
    loss, carry, metrics = loss_of(task, train=False)(params, None, batch(), keys())
    assert carry is None
    assert metrics["supervision_steps"].total / metrics["supervision_steps"].weight == 4
    walking = task.start(BATCH)
    told = []
    for _ in range(4):
        last, walking, _ = loss_of(task)(with_halting_bias(params, -5.0), walking, batch(), keys())
        told.append(float(last.total))
    assert len(set(told)) == 4
    if bias < 0:
        assert float(loss.total) == pytest.approx(told[-1], rel=1e-5)


def test_rows_that_fill_up_an_evaluation_batch_do_not_count():
    task, params = solver(), start(SMALL)
    whole = loss_of(task, train=False)(params, None, {name: rows[:4] for name, rows in batch().items()}, keys(4))
    counted = loss_of(task, train=False)(params, None, batch() | {COUNTED: np.arange(BATCH) < 4}, keys())
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(counted), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5)


def test_under_bfloat16_activations_the_carry_and_the_loss_are_float32_and_near():
    params, data = start(SMALL), batch()
    losses, carries = [], []
    for activations in ("float32", "bfloat16"):
        task = solver(precision="bfloat16", activations=activations)
        loss, carry, _ = loss_of(task)(params, task.start(BATCH), data, keys())
        losses.append(loss.total)
        carries.append(carry)
    assert {carry[name].dtype for carry in carries for name in ("high", "low")} == {jnp.dtype("float32")}
    assert losses[1].dtype == jnp.float32
    assert losses[1] == pytest.approx(float(losses[0]), rel=0.02)
    assert losses[1] != losses[0]
