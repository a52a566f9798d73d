"""One puzzle, solved by what was trained: every supervision step of it, and whether the answer keeps the rules.

In a process that imports JAX. The parameters are those that an evaluation takes: the average of the weights, where one
is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.recipes.puzzles.act_answers import every_step
from plimsoll.recipes.puzzles.question import (
    TEST,
    is_right,
    longer_than_needed,
    request_of,
    solutions,
    solvable,
    why_wrong,
)
from plimsoll.recipes.puzzles.solution_text import drawn_rows, said_of
from plimsoll.recipes.puzzles.sudoku_grids import BOXES
from plimsoll.recipes.puzzles.text import Form, Tokens, rows_of
from plimsoll.types import TrainedRun

SHOWN = 3
"""Puzzles of the test split that a report shows."""


def solve(trained: TrainedRun, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Solves one puzzle.

    Args:
        trained: A run of puzzles.
        asked: The fields of a `question.Question`.
    """
    form = solvable(trained.recipe, trained.run)
    trained.recipe = trained.recipe.without_data(trained.prepared)
    inputs = np.array(asked["inputs"], np.int32)
    tokens, logits = _answers(trained, inputs, asked["identifier"])
    halting = np.flatnonzero(logits > 0)
    return {
        "run": trained.run,
        "step": trained.step,
        "kind": form.kind,
        "box": BOXES[form.side] if form.kind == "sudoku" else None,
        "puzzle": rows_of(inputs, form),
        "answer": rows_of(tokens[-1], form),
        "supervision_steps": len(logits),
        "would_halt_at": int(halting[0]) + 1 if len(halting) else None,
        "probabilities": (1 / (1 + np.exp(-logits))).tolist(),
        **_checked(inputs, tokens[-1], form),
        **({} if asked["labels"] is None else {"right": is_right(tokens[-1], np.array(asked["labels"]))}),
    }


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns the exhibit of a report: the first puzzles of the test split, before and after."""
    recipe = trained.recipe
    recipe.data_changed(trained.prepared)  # refuses another set
    items = []
    for number in range(SHOWN):
        name = f"{TEST}{number}"
        answer = solve(trained, request_of(recipe, trained.run, name))
        before, after = (drawn_rows(answer[side], answer["box"]) for side in ("puzzle", "answer"))
        items.append({"name": name, "before": before, "after": after, "said": said_of(answer)[:-1]})
    caption = f"The first {SHOWN} of the test split, before and after, by the checkpoint of step {trained.step:,}."
    return [{"kind": "grids", "title": "What it solves", "caption": caption, "items": items}]


def _answers(trained: TrainedRun, inputs: Tokens, identifier: int) -> tuple[np.ndarray, np.ndarray]:
    """The answer after each step (steps, tokens), and its halting logit (steps,), float64."""
    task = trained.recipe.task(trained.plan.compute(jax.default_backend()))
    assert isinstance(task, RecursiveSolver)
    batch = {"inputs": inputs[None], "puzzle_identifiers": np.array([identifier], np.int32)}
    params = trained.params()
    found = jax.jit(partial(every_step, task))(params | {"trainable": readable(params["trainable"])}, batch)
    return np.asarray(found.tokens[:, 0]), np.asarray(found.halt_logits[:, 0], np.float64)


def _checked(inputs: Tokens, answer: Tokens, form: Form) -> dict[str, Any]:
    """`valid` where there are rules to check it by, and what is wrong if it is not."""
    if form.kind == "arc":
        return {}
    wrong = why_wrong(inputs, answer, form)
    found: dict[str, Any] = {"valid": wrong is None, "why_not": wrong}
    if form.kind == "sudoku":
        found["several_solutions"] = solutions(inputs, form) > 1
    if form.kind == "maze" and wrong is None:
        found["longer_than_needed"] = longer_than_needed(inputs, answer, form)
    return found
