"""Evaluating a run of ARC: the augmentations of every test input vote for its answer, in the same pass over the set.

In a process that imports JAX. `recipes/puzzles/vote_counts.py` counts and ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from plimsoll.errors import DataError
from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.recipes.puzzles.act_answers import judged
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS
from plimsoll.recipes.puzzles.recipe import Puzzles
from plimsoll.recipes.puzzles.vote_counts import Votes, scored
from plimsoll.types import COUNTED, LossSum, Task, TrainedRun


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the means over the test split; of a data set of ARC also what the votes give."""
    recipe: Puzzles = trained.recipe
    if not recipe.arc_tasks.is_file():
        return trained.means()
    poll = Poll(recipe, recipe.task(trained.plan.compute(jax.default_backend())))
    return trained.means(evaluate=poll.evaluate) | poll.result()


class Poll:
    """Evaluation of batches as the run's own, which also counts their votes."""

    def __init__(self, recipe: Puzzles, task: Task) -> None:
        assert isinstance(task, RecursiveSolver)
        self.tasks, self.names, self.votes = _tasks(recipe), recipe.test_set.names(), Votes()
        self._judged = jax.jit(partial(judged, task))

    def evaluate(self, params: Any, batch: Mapping[str, Any]) -> Mapping[str, LossSum]:
        sums, answers = self._judged(params | {"trainable": readable(params["trainable"])}, dict(batch))
        counted = np.flatnonzero(batch[COUNTED])
        names = [self.names[identifier] for identifier in batch[IDENTIFIERS][counted]]
        tokens, logits = np.asarray(answers.tokens)[counted], np.asarray(answers.halt_logits)[counted]
        self.votes.add(names, batch[INPUTS][counted], tokens, logits)
        return sums

    def result(self) -> dict[str, Any]:
        """Returns `pass@K` where answers are known, test inputs without a vote, and the submission."""
        scores = scored(self.votes, self.tasks)
        passed = {f"pass@{most}": share for most, share in scores.pass_at.items()}
        return {**passed, "tasks": len(self.tasks), "unanswered": scores.unanswered, "submission": scores.submission}


def _tasks(recipe: Puzzles) -> dict[str, Any]:
    path = recipe.arc_tasks
    try:
        tasks = json.loads(path.read_text("utf-8"))
        for task in tasks.values():
            _ = [pair["input"] for pair in task["test"]]
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as problem:
        raise DataError(
            f"{path} does not hold tasks of ARC ({type(problem).__name__}: {problem}): prepare the data set again"
        ) from None
    return tasks
