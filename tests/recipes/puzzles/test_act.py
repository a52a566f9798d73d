"""When a slot halts, and what is the likeliest answer: on logits and steps that are written down."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

from plimsoll.recipes.puzzles.act import Answers, Halting, RecursiveSolver

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
    solver.halting = Halting(max_steps=max_steps, exploration=exploration)
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


def test_exploring_can_only_delay():
    assert halts(-1.0, 3, exploration=1.0) == 0


def test_as_many_slots_explore_as_the_share_says():
    assert halts(1.0, 1, exploration=0.25) == pytest.approx(0.75, abs=0.08)


@pytest.mark.parametrize(("max_steps", "share"), [(1, 1), (2, 0)])
def test_with_fewer_than_two_steps_there_is_nothing_to_explore(max_steps, share):
    assert halts(1.0, 1, max_steps=max_steps, exploration=1.0) == share


def test_the_published_rules_are_the_default():
    assert Halting() == Halting(max_steps=16, exploration=0.1)


def test_the_likeliest_token_of_each_place_is_the_answer():
    logits = jnp.array([[[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]]])
    found = Answers.likeliest(logits, jnp.array([0.5]))
    assert found.tokens.tolist() == [[1, 0]]
    assert found.tokens.dtype == jnp.int32
    assert found.halt_logits.tolist() == [0.5]
