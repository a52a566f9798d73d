"""Evaluating a run of ARC: the augmentations of every test input vote for its answer, in the same pass over the set.

In a process that imports JAX. `recipes/puzzles/vote_counts.py` counts and ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.puzzles.act import Answers, RecursiveSolver
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS
from plimsoll.recipes.puzzles.recipe import Puzzles
from plimsoll.recipes.puzzles.vote_counts import Votes, scored
from plimsoll.types import COUNTED, Batch, LossSum, Metrics, Params, TrainedRun


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the means over the test split.

    Of a data set of ARC these are followed by what the votes give: `pass@K` where answers are known, the number of
    tasks, and the submission.
    """
    recipe: Puzzles = trained.recipe
    if not recipe.arc_tasks.is_file():
        return trained.means()
    tasks = json.loads(recipe.arc_tasks.read_text("utf-8"))
    names = recipe.test_set.names()
    votes = Votes()
    task = recipe.task(trained.plan.compute(jax.default_backend()))
    assert isinstance(task, RecursiveSolver)

    @jax.jit
    def evaluated(params: Params, batch: Batch) -> tuple[Metrics, Answers]:
        loss, metrics, *logits = task.evaluated(params, batch)
        return metrics | {"loss": loss}, Answers.likeliest(*logits)

    def evaluate_and_vote(params: Any, batch: Mapping[str, Any]) -> Mapping[str, LossSum]:
        sums, answers = evaluated(params | {"trainable": readable(params["trainable"])}, dict(batch))
        counted = np.flatnonzero(batch[COUNTED])
        voters = [names[identifier] for identifier in batch[IDENTIFIERS][counted]]
        tokens = np.asarray(answers.tokens)[counted]
        halt_logits = np.asarray(answers.halt_logits)[counted]
        votes.add(voters, batch[INPUTS][counted], tokens, halt_logits)
        return sums

    means = trained.means(evaluate=evaluate_and_vote)
    scores = scored(votes, tasks)
    means |= {f"pass@{most}": share for most, share in scores.pass_at.items()}
    return means | {"tasks": len(tasks), "submission": scores.submission}
