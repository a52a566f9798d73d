"""Votes for ARC answers: augmentations are undone, equal grids counted together, ranked by votes, then certainty."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.recipes.puzzles import arc_votes
from plimsoll.recipes.puzzles.act import Answers, RecursiveSolver
from plimsoll.recipes.puzzles.arc_grids import placed, random_augmentation
from plimsoll.recipes.puzzles.arc_votes import Votes, scored
from plimsoll.types import COUNTED, LossSum

ASKED = np.array([[1, 2], [3, 0]], np.uint8)
OTHER = np.array([[4]], np.uint8)
RIGHT, WRONG, WORSE = (np.array(grid, np.uint8) for grid in ([[5, 5, 5]], [[6]], [[7], [8]]))


def logit(probability):
    return np.log(probability / (1 - probability))


def add(votes, predicted, probability, *, asked=ASKED, task="t", seed=None):
    """One prediction of one augmentation, as the network would give it."""
    if seed is None:
        name, given, found = task, asked, predicted
    else:
        made = random_augmentation(np.random.default_rng(seed))
        name, given, found = made.named(task), made.applied(asked), made.applied(predicted)
    votes.add([name], placed(given)[None], placed(found)[None], np.array([logit(probability)], np.float32))


def ranked(votes, asked=ASKED, task="t"):
    return [(one.grid.tolist(), one.votes, pytest.approx(one.probability)) for one in votes.ranked(task, asked)]


def pairs(*both):
    return [{"input": asked.tolist(), "output": answer.tolist()} for asked, answer in both]


@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_augmentations_vote_for_one_answer_once_they_are_undone(seeds):
    votes = Votes()
    for seed in seeds:
        add(votes, RIGHT, 0.5, seed=seed)
    assert ranked(votes) == [(RIGHT.tolist(), len(seeds), 0.5)]


def test_votes_count_before_certainty_and_certainty_decides_between_equals():
    votes = Votes()
    for seed, (predicted, probability) in enumerate(
        [(WORSE, 0.99), (WRONG, 0.2), (RIGHT, 0.6), (WRONG, 0.4), (RIGHT, 0.8)]
    ):
        add(votes, predicted, probability, seed=seed)
    assert ranked(votes) == [(RIGHT.tolist(), 2, 0.7), (WRONG.tolist(), 2, 0.3), (WORSE.tolist(), 1, 0.99)]


def test_test_inputs_of_a_task_are_told_apart():
    votes = Votes()
    add(votes, RIGHT, 0.5, seed=1)
    add(votes, WRONG, 0.5, asked=OTHER, seed=2)
    add(votes, WORSE, 0.5, task="u", seed=3)
    assert ranked(votes) == [(RIGHT.tolist(), 1, 0.5)]
    assert ranked(votes, OTHER) == [(WRONG.tolist(), 1, 0.5)]
    assert ranked(votes, task="u") == [(WORSE.tolist(), 1, 0.5)]
    assert ranked(votes, RIGHT) == []


def test_what_is_no_grid_at_all_is_a_vote_too():
    votes = Votes()
    votes.add(["t"], placed(ASKED)[None], np.zeros((1, 900), int), np.array([9.0]))
    add(votes, RIGHT, 0.5)
    assert [one.grid.size for one in votes.ranked("t", ASKED)] == [0, 3]
    shares, submission = scored(votes, {"t": {"test": pairs((ASKED, RIGHT))}})
    assert (shares[1], shares[2]) == (0.0, 1.0)
    assert submission == {"t": [{"attempt_1": RIGHT.tolist(), "attempt_2": RIGHT.tolist()}]}


def test_a_score_is_the_share_of_a_tasks_inputs_among_the_first_k():
    votes = Votes()
    for predicted, count in ((WRONG, 3), (RIGHT, 2), (WORSE, 1)):
        for seed in range(count):
            add(votes, predicted, 0.5, seed=seed)
    add(votes, WRONG, 0.5, asked=OTHER)
    add(votes, OTHER, 0.5, task="u")
    them = {
        "t": {"test": pairs((ASKED, RIGHT), (OTHER, WRONG))},
        "u": {"test": pairs((ASKED, WORSE))},
        "v": {"test": pairs((ASKED, WORSE))},
    }
    shares, submission = scored(votes, them)
    assert shares == pytest.approx({1: 0.5 / 3, 2: 1 / 3, 5: 1 / 3, 10: 1 / 3, 100: 1 / 3, 1000: 1 / 3})
    assert submission["t"] == [
        {"attempt_1": WRONG.tolist(), "attempt_2": RIGHT.tolist()},
        {"attempt_1": WRONG.tolist(), "attempt_2": WRONG.tolist()},
    ]
    assert submission["v"] == [{"attempt_1": [[0]], "attempt_2": [[0]]}]


def test_tasks_whose_answers_nobody_knows_are_submitted_and_not_scored():
    votes = Votes()
    add(votes, RIGHT, 0.5)
    unknown = {"test": [{"input": ASKED.tolist()}]}
    assert scored(votes, {"t": unknown})[0] == {}
    assert scored(votes, {"t": unknown})[1]["t"][0]["attempt_1"] == RIGHT.tolist()
    known = {"test": pairs((ASKED, WRONG))}
    assert scored(votes, {"t": unknown, "u": known})[0][1] == 0.0


@pytest.fixture
def run(tmp_path):
    """A run whose network answers with a batch's labels, and is as sure as its `sure` says."""
    task = object.__new__(RecursiveSolver)

    def evaluated(params, batch):
        logits = jax.nn.one_hot(batch["labels"], 12)
        answers = Answers.likeliest(logits, batch["sure"])
        return LossSum(params["trainable"], 1.0), {"accuracy": LossSum(0.5, 1.0)}, answers

    task.evaluated = evaluated
    (tmp_path / "test_puzzles.json").write_text(json.dumps({"t": {"test": pairs((ASKED, RIGHT))}}))
    test_set = SimpleNamespace(names=lambda: ["<blank>", "t", "u"])
    data = SimpleNamespace(arc_tasks=tmp_path / "test_puzzles.json", test_set=test_set)
    recipe = SimpleNamespace(data=data)
    batch = {
        "inputs": np.stack([placed(ASKED)] * 4), "puzzle_identifiers": np.array([1, 1, 2, 1]),
        "labels": np.stack([placed(RIGHT), placed(WRONG), placed(RIGHT), placed(WRONG)]).astype(np.int32),
        "sure": np.float32([2, 1, 9, 9]), COUNTED: np.array([True, True, True, False]),
    }  # fmt: skip

    def means(evaluate=None):
        if evaluate is None:
            return {"loss": 7.0}
        sums = evaluate({"trainable": np.float32(3)}, batch)
        return {name: float(total) / float(weight) for name, (total, weight) in sums.items()}

    return SimpleNamespace(recipe=recipe, task=task, means=means)


def test_an_evaluation_counts_the_votes_of_the_examples_that_count(run):
    """The last one is padding: with it there would be two votes for what is wrong."""
    found = arc_votes.evaluate(run, {})
    assert (found["loss"], found["accuracy"], found["tasks"]) == (3.0, 0.5, 1)
    assert (found["pass@1"], found["pass@1000"]) == (1.0, 1.0)
    assert found["submission"] == {"t": [{"attempt_1": RIGHT.tolist(), "attempt_2": WRONG.tolist()}]}
    run.recipe.data.arc_tasks.unlink()
    assert arc_votes.evaluate(run, {}) == {"loss": 7.0}  # a data set without tasks has its means alone
