"""Solves one puzzle with a trained model by all supervision steps, and checks the answer against the rules.

This module imports JAX. Like an evaluation, it uses the average of the weights, if there is one.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.recipes.puzzles.question import TEST, question, solvable, verdict
from plimsoll.recipes.puzzles.sudoku_grids import BOXES
from plimsoll.recipes.puzzles.text import grid_lines, rows_of, verdict_lines
from plimsoll.types import IGNORED_LABEL, TrainedRun

SHOWN = 3
"""Number of test puzzles that a report shows."""


def solve(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to one puzzle, with checks and halting probabilities.

    Args:
        trained: A run of puzzles.
        request: Result of `question.question`.
    """
    form = solvable(trained.prepared.spec, trained.run)
    task = trained.task
    assert isinstance(task, RecursiveSolver)
    params = trained.params()
    inputs = np.array(request["inputs"], np.int32)
    batch = {
        "inputs": inputs[None],
        "labels": np.full_like(inputs, IGNORED_LABEL)[None],
        "puzzle_identifiers": np.array([request["identifier"]], np.int32),
    }
    answers = jax.jit(task.every_step)(params, batch)
    last = np.asarray(answers.tokens[-1, 0])
    logits = np.asarray(answers.halt_logits[:, 0], np.float64)
    halting = np.flatnonzero(logits > 0)
    labels = None if request["labels"] is None else np.array(request["labels"])
    return {
        "run": trained.run,
        "step": trained.step,
        "kind": form.kind,
        "box": BOXES[form.side] if form.kind == "sudoku" else None,
        "puzzle": rows_of(inputs, form),
        "answer": rows_of(last, form),
        "supervision_steps": len(logits),
        "would_halt_at": int(halting[0]) + 1 if len(halting) else None,
        "probabilities": (1 / (1 + np.exp(-logits))).tolist(),
        **verdict(inputs, last, form, labels=labels),
    }


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns the part of a report with the first puzzles of the test split and their answers."""
    recipe = trained.recipe
    _ = trained.data  # raises if the data set is another one
    items = []
    for number in range(SHOWN):
        name = f"{TEST}{number}"
        answer = solve(trained, question(recipe, trained.run, name))
        before = grid_lines(answer["puzzle"], answer["box"])
        after = grid_lines(answer["answer"], answer["box"])
        items.append({"name": name, "before": before, "after": after, "said": verdict_lines(answer)[:-1]})
    caption = f"The first {SHOWN} of the test split, before and after, by the checkpoint of step {trained.step:,}."
    return [{"kind": "grids", "title": "What it solves", "caption": caption, "items": items}]
