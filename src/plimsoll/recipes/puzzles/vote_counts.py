"""Answers to ARC tasks from the predictions for their augmentations: undone, counted and ranked.

Every augmentation of a test input votes for the grid it predicts. Candidates are ranked by votes, then by their mean
probability of being right; a task's score at K is the share of its test inputs whose answer is among the first K. Tiny
Recursive Models, evaluators/arc.py; the benchmark itself allows two attempts (https://arcprize.org).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from plimsoll.recipes.puzzles.arc_grids import Grid, Key, cropped, key_of, read_name

PASS_AT = (1, 2, 5, 10, 100, 1000)
ATTEMPTS = 2
"""Attempts of a submission per test input."""


class Candidate(NamedTuple):
    grid: Grid
    votes: int
    probability: float
    """Mean, over its votes, of the sigmoid of the halting logit: the probability that the answer is right."""


class Votes:
    """Votes of any number of batches."""

    def __init__(self) -> None:
        self._probabilities: dict[tuple[str, Key], dict[Key, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Probability of each vote, by task and input, and by predicted grid."""
        self._grids: dict[Key, Grid] = {}

    def add(
        self,
        names: Sequence[str],
        inputs: Int[np.ndarray, "batch tokens"],
        predicted: Int[np.ndarray, "batch tokens"],
        halt_logits: Float[np.ndarray, " batch"],
    ) -> None:
        """Adds the predictions of a batch, without padding rows.

        `names` has the identifiers' names with their augmentations.
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
        """Returns the candidates, best first, or nothing if nothing was predicted.

        Among equals the first prediction comes first.
        """
        candidates = [
            Candidate(self._grids[key], len(probabilities), sum(probabilities) / len(probabilities))
            for key, probabilities in self._probabilities[task, key_of(question)].items()
        ]
        return sorted(candidates, key=lambda candidate: (candidate.votes, candidate.probability), reverse=True)


class Scores(NamedTuple):
    pass_at: dict[int, float]
    """Mean over tasks of the share of test inputs whose answer is among the first K. Tasks with unknown answers are
    left out; empty if none is known."""
    submission: dict[str, list[dict[str, list[list[int]]]]]
    """Two attempts, `attempt_1` and `attempt_2`, of each test input, by task: the form of the competition."""


def scored(votes: Votes, tasks: Mapping[str, Any]) -> Scores:
    """Returns the score of all votes.

    `tasks` maps names to `{"test": [{"input": ..., "output": ...}]}`, as in test_puzzles.json.
    """
    solved = dict.fromkeys(PASS_AT, 0.0)
    known = 0
    submission = {}
    for name, task in tasks.items():
        pairs = task["test"]
        rankings = [votes.ranked(name, np.array(pair["input"], np.uint8)) for pair in pairs]
        submission[name] = [_attempts(ranking) for ranking in rankings]

        # A task counts where all of its answers are known.
        if any(pair.get("output") is None for pair in pairs):
            continue
        known += 1
        for pair, ranking in zip(pairs, rankings, strict=True):
            right = key_of(np.array(pair["output"], np.uint8))
            keys = [key_of(candidate.grid) for candidate in ranking]
            for most in PASS_AT:
                solved[most] += (right in keys[:most]) / len(pairs)
    return Scores({most: total / known for most, total in solved.items() if known}, submission)


def _attempts(ranking: list[Candidate]) -> dict[str, list[list[int]]]:
    """Returns two attempts: the last one again if there are too few, and a black cell if there is none."""
    grids = [candidate.grid.tolist() for candidate in ranking if candidate.grid.size] or [[[0]]]
    return {f"attempt_{number + 1}": grids[min(number, len(grids) - 1)] for number in range(ATTEMPTS)}
