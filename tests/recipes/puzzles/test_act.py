"""When a slot halts, what is the likeliest answer, and that what is answered is what an evaluation judges."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.puzzles.act import Answers, RecursiveSolver
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import COUNTED, IGNORED_LABEL, Compute

STRICT = True
KEYS = jax.random.split(jax.random.key(0), 400)


def halts(q, steps, *, max_steps=4, exploration=0.0, keys=KEYS):
    """Of so many slots alike, which halt; one for each key."""
    count = len(keys)
    rule = rule_of(max_steps, exploration)
    return float(rule(jnp.full(count, q, jnp.float32), jnp.full(count, steps, jnp.int32), keys).mean())


@cache
def rule_of(max_steps, exploration):
    solver = object.__new__(RecursiveSolver)
    solver.model = Trm(halt_max_steps=max_steps, halt_exploration=exploration)
    return jax.jit(solver._halts)


@pytest.mark.parametrize(
    ("q", "steps", "share"), [(-1.0, 1, 0), (0.0, 3, 0), (0.5, 1, 1), (1e-6, 3, 1), (-1.0, 4, 1), (0.0, 5, 1)]
)
def test_a_slot_halts_that_is_rather_sure_or_has_had_its_steps(q, steps, share):
    assert halts(q, steps) == share


def test_an_exploring_slot_that_is_sure_stays_for_two_steps_to_all_alike():
    """A third of them for two, three and four; none of them goes on beyond the last."""
    stays = [halts(1.0, steps, exploration=1.0) for steps in (1, 2, 3, 4)]
    assert stays == pytest.approx([0, 1 / 3, 2 / 3, 1], abs=0.08)
    assert stays[0] == 0
    assert stays[-1] == 1


def test_as_many_slots_explore_as_the_share_says_which_can_only_delay():
    assert halts(1.0, 1, exploration=0.25) == pytest.approx(0.75, abs=0.08)
    assert halts(-1.0, 3, exploration=1.0) == 0
    few = [halts(1.0, 1, max_steps=steps, exploration=1.0) for steps in (1, 2)]
    assert few == [1, 0]  # with fewer than two there is nothing to explore


def test_the_likeliest_token_of_each_place_is_the_answer():
    logits = jnp.array([[[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]]])
    found = Answers.likeliest(logits, jnp.array([0.5]))
    assert found.tokens.tolist() == [[1, 0]]
    assert found.tokens.dtype == jnp.int32
    assert found.halt_logits.tolist() == [0.5]


BATCH, LENGTH, VOCAB = 5, 16, 5
MODEL = Trm(width=32, heads=2, layers=1, high_cycles=2, low_cycles=2, puzzle_positions=2, halt_max_steps=4)
SPEC = PuzzleSpec(arrays={}, vocab=VOCAB, length=LENGTH, identifiers=3)


@pytest.fixture(scope="module")
def case():
    task = RecursiveSolver(MODEL, SPEC, Compute())
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


@pytest.fixture(scope="module")
def evaluated(case):
    return jax.jit(case[0].evaluated)


def test_the_sums_are_those_of_an_evaluation(case, evaluated):
    task, params, batch = case
    loss, _, metrics = jax.jit(lambda params, batch: task.loss(params, None, batch, None, train=False))(params, batch)
    *sums, answers = evaluated(params, batch)
    jax.tree.map(np.testing.assert_array_equal, sums, [loss, metrics])
    wanted = np.asarray(batch["labels"]) != IGNORED_LABEL
    right = (np.asarray(answers.tokens) == np.asarray(batch["labels"])) & wanted
    share = (right.sum(1) / wanted.sum(1))[np.asarray(batch[COUNTED])]
    np.testing.assert_allclose(float(metrics["accuracy"].total), share.sum(), rtol=1e-6)


def test_the_last_of_all_steps_is_the_answer_that_is_judged(case, evaluated):
    task, params, batch = case
    steps = jax.jit(task.every_step)(params, batch)
    answers = evaluated(params, batch)[2]
    assert steps.tokens.shape == (4, BATCH, LENGTH)
    np.testing.assert_array_equal(steps.tokens[-1], answers.tokens)
    np.testing.assert_allclose(steps.halt_logits[-1], answers.halt_logits, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(steps.halt_logits))) == 4 * BATCH  # every step and puzzle has its own


def test_the_answer_depends_on_the_row_of_the_puzzle(case, evaluated):
    _, params, batch = case
    other = evaluated(params, batch | {"puzzle_identifiers": jnp.array([1, 1, 2, 1, 0])})[2]
    same = np.asarray(other.halt_logits) == np.asarray(evaluated(params, batch)[2].halt_logits)
    assert same.tolist() == [False, True, True, True, True]
