"""Answers to ARC tasks from the predictions for their augmentations: undone, counted and ranked.

Every augmentation of a test input votes for the grid it predicts. Candidates are ranked by votes, then by their mean
probability of being right; a task's score at K is the share of its test inputs whose answer is among the first K. Tiny
Recursive Models, evaluators/arc.py; the benchmark itself allows two attempts (https://arcprize.org).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from plimsoll.recipes.puzzles.arc_grids import Grid, cropped, read_name

PASS_AT = (1, 2, 5, 10, 100, 1000)
ATTEMPTS = 2
"""Attempts of a submission per test input."""

Key = bytes
"""Shape and colours of a grid, as a key that can be hashed."""


def key_of(grid: Grid) -> Key:
    return bytes(grid.shape) + grid.tobytes()


class Candidate(NamedTuple):
    grid: Grid
    votes: int
    probability: float
    """Mean, over its votes, of the sigmoid of the halting logit: the probability that the answer is right."""


@dataclass
class Votes:
    """Votes of any number of batches; those of several evaluations of a run may be added up."""

    of: dict[str, dict[Key, dict[Key, tuple[int, float]]]] = field(default_factory=dict)
    """Votes, and the sum of their probabilities, by task, input and predicted grid."""

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
        sure = 1 / (1 + np.exp(-np.asarray(halt_logits, np.float64)))
        for name, given, answer, probability in zip(names, inputs, predicted, sure.tolist(), strict=True):
            task, augmentation = read_name(name)
            question, answered = (key_of(augmentation.undone(cropped(tokens))) for tokens in (given, answer))
            candidates = self.of.setdefault(task, {}).setdefault(question, {})
            votes, total = candidates.get(answered, (0, 0.0))
            candidates[answered] = votes + 1, total + probability

    def ranked(self, task: str, question: Grid) -> list[Candidate]:
        """Returns the candidates, best first, or nothing if nothing was predicted.

        Among equals the first prediction comes first.
        """
        candidates = []
        for key, (votes, total) in self.of.get(task, {}).get(key_of(question), {}).items():
            grid = np.frombuffer(key, np.uint8, offset=2).reshape(key[0], key[1])  # what `key_of` was given
            candidates.append(Candidate(grid, votes, total / votes))
        return sorted(candidates, key=lambda candidate: (candidate.votes, candidate.probability), reverse=True)


class Scores(NamedTuple):
    pass_at: dict[int, float]
    """Mean over tasks of the share of test inputs whose answer is among the first K. Tasks with unknown answers are
    left out; empty if none is known."""
    submission: dict[str, list[dict[str, list[list[int]]]]]
    """Two attempts, `attempt_1` and `attempt_2`, of each test input, by task: the form of the competition."""
    unanswered: int
    """Test inputs without a prediction, which count as wrong."""


def scored(votes: Votes, tasks: Mapping[str, Any], *, at: Iterable[int] = PASS_AT) -> Scores:
    """Returns the score of all votes.

    `tasks` maps names to `{"test": [{"input": ..., "output": ...}]}`, as in test_puzzles.json.
    """
    at = tuple(at)
    solved, known, unanswered = dict.fromkeys(at, 0.0), 0, 0
    submission: dict[str, list[dict[str, list[list[int]]]]] = {}
    for name, task in tasks.items():
        submission[name] = []
        is_known = all(pair.get("output") is not None for pair in task["test"])
        known += is_known
        for pair in task["test"]:
            ranked = votes.ranked(name, np.array(pair["input"], np.uint8))
            unanswered += not ranked
            # The last one again if there are too few, and a black cell if there is none.
            grids = [candidate.grid.tolist() for candidate in ranked if candidate.grid.size][:ATTEMPTS] or [[[0]]]
            attempts = {f"attempt_{number + 1}": grids[min(number, len(grids) - 1)] for number in range(ATTEMPTS)}
            submission[name].append(attempts)
            if is_known:
                right = key_of(np.array(pair["output"], np.uint8))
                keys = [key_of(candidate.grid) for candidate in ranked]
                place = keys.index(right) if right in keys else np.inf
                for most in at:
                    solved[most] += (place < most) / len(task["test"])
    return Scores({most: total / known for most, total in solved.items() if known}, submission, unanswered)
