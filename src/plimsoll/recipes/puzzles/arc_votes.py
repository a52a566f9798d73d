"""Evaluates a run on ARC: predictions for the augmentations of a test input vote for its answer.

This module imports JAX. Each prediction votes for its grid, with the augmentation undone. Candidate grids are ranked by
votes, then by mean probability of being right. A task's score at K is the share of its test inputs whose answer is
among the first K candidates. Method: evaluators/arc.py of Tiny Recursive Models. The benchmark itself allows two
attempts (https://arcprize.org).
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from plimsoll.errors import RecipeError
from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.puzzles.act import Answers, RecursiveSolver
from plimsoll.recipes.puzzles.arc_grids import Grid, Key, cropped, key_of, read_name
from plimsoll.recipes.puzzles.data import PuzzleFolder
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS
from plimsoll.types import COUNTED, Batch, LossSum, Metrics, Params, TrainedRun

PASS_AT = (1, 2, 5, 10, 100, 1000)
ATTEMPTS = 2
"""Number of attempts per test input in a submission."""


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mean metrics over the test split.

    For an ARC data set they include `pass@K` if answers are known, the number of tasks, and the submission.
    """
    data: PuzzleFolder = trained.recipe.data
    if not data.arc_tasks.is_file():
        if request.get("submission"):
            raise RecipeError(f"--submission writes answers to tasks of ARC, and {trained.run} has none: leave it out")
        return trained.means()
    tasks = json.loads(data.arc_tasks.read_text("utf-8"))
    names = data.test_set.names()
    votes = Votes()
    task = trained.task
    assert isinstance(task, RecursiveSolver)

    @jax.jit
    def evaluated(params: Params, batch: Batch) -> tuple[Metrics, Answers]:
        loss, metrics, answers = task.evaluated(params, batch)
        return metrics | {"loss": loss}, answers

    def evaluate_and_vote(params: Any, batch: Mapping[str, Any]) -> Mapping[str, LossSum]:
        sums, answers = evaluated(params | {"trainable": readable(params["trainable"])}, dict(batch))
        counted = np.flatnonzero(batch[COUNTED])
        voters = [names[identifier] for identifier in batch[IDENTIFIERS][counted]]
        tokens = np.asarray(answers.tokens)[counted]
        halt_logits = np.asarray(answers.halt_logits)[counted]
        votes.add(voters, batch[INPUTS][counted], tokens, halt_logits)
        return sums

    means = trained.means(evaluate=evaluate_and_vote)
    shares, submission = scored(votes, tasks)
    means |= {f"pass@{most}": share for most, share in shares.items()}
    return means | {"tasks": len(tasks), "submission": submission}


class Candidate(NamedTuple):
    grid: Grid
    votes: int
    probability: float
    """Predicted probability that the grid is right: mean, over its votes, of the sigmoid of the halting logit."""


class Votes:
    """Votes for the answers to test inputs, from any number of batches."""

    def __init__(self) -> None:
        self._probabilities: dict[tuple[str, Key], dict[Key, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Probability of each vote, by task and test input, then by predicted grid."""
        self._grids: dict[Key, Grid] = {}

    def add(
        self,
        names: Sequence[str],
        inputs: Int[np.ndarray, "batch tokens"],
        predicted: Int[np.ndarray, "batch tokens"],
        halt_logits: Float[np.ndarray, " batch"],
    ) -> None:
        """Adds a vote for each prediction of a batch without padding examples.

        `names` holds the examples' puzzle names, which include the augmentation.
        """
        probabilities = 1 / (1 + np.exp(-np.asarray(halt_logits, np.float64)))
        for name, tokens, answer, probability in zip(names, inputs, predicted, probabilities.tolist(), strict=True):
            task, augmentation = read_name(name)
            question = augmentation.undone(cropped(tokens))
            grid = augmentation.undone(cropped(answer))
            key = key_of(grid)
            self._grids[key] = grid
            self._probabilities[task, key_of(question)][key].append(probability)

    def ranked(self, task: str, question: Grid) -> list[Candidate]:
        """Returns the candidates for a test input, best first; none if there are no votes.

        Ties are in the order of their first votes.
        """
        candidates = [
            Candidate(self._grids[key], len(probabilities), sum(probabilities) / len(probabilities))
            for key, probabilities in self._probabilities[task, key_of(question)].items()
        ]
        return sorted(candidates, key=lambda candidate: (candidate.votes, candidate.probability), reverse=True)


Submission = dict[str, list[dict[str, list[list[int]]]]]
"""Answers in the competition's format: for each task, `attempt_1` and `attempt_2` of each test input."""


def scored(votes: Votes, tasks: Mapping[str, Any]) -> tuple[dict[int, float], Submission]:
    """Returns pass@K for each K of PASS_AT, and the submission.

    pass@K is the mean over tasks of the share of test inputs whose answer is among the first K candidates. Tasks with
    unknown answers do not count; if none counts it is missing. `tasks` maps names to `{"test": [{"input": ...,
    "output": ...}]}`, as in test_puzzles.json.
    """
    solved = dict.fromkeys(PASS_AT, 0.0)
    known = 0
    submission = {}
    for name, task in tasks.items():
        pairs = task["test"]
        rankings = [votes.ranked(name, np.array(pair["input"], np.uint8)) for pair in pairs]
        submission[name] = [_attempts(ranking) for ranking in rankings]

        # A task is scored only if all of its answers are known.
        if any(pair.get("output") is None for pair in pairs):
            continue
        known += 1
        for pair, ranking in zip(pairs, rankings, strict=True):
            right = key_of(np.array(pair["output"], np.uint8))
            keys = [key_of(candidate.grid) for candidate in ranking]
            for most in PASS_AT:
                solved[most] += (right in keys[:most]) / len(pairs)
    return {most: total / known for most, total in solved.items() if known}, submission


def _attempts(ranking: list[Candidate]) -> dict[str, list[list[int]]]:
    """Returns the two best grids as attempts. A single grid fills both; without any, both are one black cell."""
    grids = [candidate.grid.tolist() for candidate in ranking if candidate.grid.size] or [[[0]]]
    return {f"attempt_{number + 1}": grids[min(number, len(grids) - 1)] for number in range(ATTEMPTS)}
