"""What is answered is what an evaluation judges: the same tokens, sums and steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.puzzles.act import Halting, RecursiveSolver
from plimsoll.recipes.puzzles.trm_shape import TRMShape
from plimsoll.types import COUNTED, IGNORED_LABEL, Compute

STRICT = True

BATCH, LENGTH, VOCAB = 5, 16, 5


@pytest.fixture(scope="module", params=["mlp", "attention"])
def case(request):
    shape = TRMShape(
        vocab=VOCAB,
        length=LENGTH,
        identifiers=3,
        width=32,
        heads=2,
        layers=1,
        high_cycles=2,
        low_cycles=2,
        puzzle_positions=2,
        variant=request.param,
    )
    task = RecursiveSolver(shape, Compute(), Halting(max_steps=4))
    keys = jax.random.split(jax.random.key(0), 5)
    params = jax.jit(task.init)(keys[0])
    params["trainable"]["halt"]["kernel"] = jax.random.normal(keys[1], (32, 2))
    params["trainable"]["halt"]["bias"] = jnp.zeros(2)
    params["tables"]["puzzles"] = jax.random.normal(keys[2], (3, 32))
    labels = jax.random.randint(keys[4], (BATCH, LENGTH), 0, VOCAB)
    batch = {
        "inputs": jax.random.randint(keys[3], (BATCH, LENGTH), 0, VOCAB),
        "labels": jnp.where(labels == 0, IGNORED_LABEL, labels),
        "puzzle_identifiers": jnp.array([0, 1, 2, 1, 0]),
        COUNTED: jnp.array([True, True, True, True, False]),
    }
    return task, params, batch


def test_the_sums_are_those_of_an_evaluation(case):
    task, params, batch = case
    loss, _, metrics = jax.jit(lambda params, batch: task.loss(params, None, batch, None, train=False))(params, batch)
    *sums, answers = jax.jit(task.evaluated)(params, batch)
    jax.tree.map(np.testing.assert_array_equal, sums, [loss, metrics])
    wanted = np.asarray(batch["labels"]) != IGNORED_LABEL
    right = (np.asarray(answers.tokens) == np.asarray(batch["labels"])) & wanted
    share = (right.sum(1) / wanted.sum(1))[np.asarray(batch[COUNTED])]
    np.testing.assert_allclose(float(metrics["accuracy"].total), share.sum(), rtol=1e-6)


def test_the_last_of_all_steps_is_the_answer_that_is_judged(case):
    task, params, batch = case
    steps = task.every_step(params, batch)
    answers = task.evaluated(params, batch)[2]
    assert steps.tokens.shape == (4, BATCH, LENGTH)
    np.testing.assert_array_equal(steps.tokens[-1], answers.tokens)
    np.testing.assert_allclose(steps.halt_logits[-1], answers.halt_logits, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(steps.halt_logits))) == 4 * BATCH  # every step and puzzle has its own


def test_the_answer_depends_on_the_row_of_the_puzzle(case):
    task, params, batch = case
    other = task.evaluated(params, batch | {"puzzle_identifiers": jnp.array([1, 1, 2, 1, 0])})[2]
    same = np.asarray(other.halt_logits) == np.asarray(task.evaluated(params, batch)[2].halt_logits)
    assert same.tolist() == [False, True, True, True, True]
