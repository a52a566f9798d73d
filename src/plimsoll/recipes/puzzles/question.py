"""Reads the puzzle of `plimsoll solve`, and checks the answer against the rules.

This module does not import JAX, so that invalid input is rejected at once.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.puzzles.data import PuzzleFolder
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS
from plimsoll.recipes.puzzles.maze_rules import fault
from plimsoll.recipes.puzzles.sudoku_grids import valid
from plimsoll.recipes.puzzles.text import Form, Tokens, form_of, tokens_of
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import IGNORED_LABEL
from plimsoll.units import whole_number

TEST = "test:"
"""Prefix for the index of an example in the test split, as in `test:0`."""


def question(recipe: Recipe, run: str, puzzle: str) -> dict[str, Any]:
    """Returns the network's input for `puzzle`: a puzzle's characters, a file with them, or an example like `test:17`.

    It has `inputs` and `identifier`, and `labels`: the answer of the test split (IGNORED_LABEL for tokens without a
    label), or None if it is not known.
    """
    data = recipe.data
    assert isinstance(data, PuzzleFolder)
    assert isinstance(recipe.spec, PuzzleSpec)
    form = solvable(recipe.spec, run)

    # An example of the test split.
    if puzzle.startswith(TEST):
        tests = data.test_set
        number = whole_number(puzzle.removeprefix(TEST))
        if number is None or number >= tests.examples:
            raise DataError(
                f"there is no example {puzzle!r} in {tests.folder / tests.split}: it has {tests.examples:,}, so name"
                f" one of {TEST}0 to {TEST}{tests.examples - 1}"
            )
        batch = tests.batch(np.array([number]))
        names = {"inputs": INPUTS, "identifier": IDENTIFIERS, "labels": LABELS}
        return {key: batch[name][0].tolist() for key, name in names.items()}
    if form.kind == "arc":
        raise DataError(
            f"{run} solves ARC, whose tasks the network knows by their identifiers in the data set: a typed task"
            " has none. Name an example of its test split, like test:17"
        )

    # A file, or the characters themselves. (`Path.is_file` may raise an error for a long puzzle.)
    text = puzzle
    source = f"the puzzle {puzzle[:30]!r} (there is no such file)"
    if os.path.isfile(puzzle):
        text = Path(puzzle).read_text("utf-8", errors="replace")
        source = puzzle
    return {"inputs": tokens_of(text, form, source=source).tolist(), "identifier": 0, "labels": None}


def solvable(spec: PuzzleSpec, run: str) -> Form:
    """Returns kind and size of the run's puzzles.

    Raises:
        RecipeError: The kind is not known.
    """
    form = form_of(seq_len=spec.length, vocab_size=spec.vocab)
    if form is None:
        raise RecipeError(
            f"{run} has puzzles of {spec.length:,} tokens from a vocabulary of {spec.vocab:,}: neither Sudoku"
            " nor a maze nor ARC, so their form is not known. `plimsoll evaluate` reports the share that it solves"
        )
    return form


def verdict(inputs: Tokens, answer: Tokens, form: Form, *, labels: Tokens | None = None) -> dict[str, Any]:
    """Returns the results of the checks of an answer.

    `valid` is True if the answer keeps the rules, and `why_not` describes a broken rule; ARC has no known rules.
    `right`, only with `labels`, is True if the answer equals all labels that are not ignored.
    """
    known: dict[str, Any] = {}
    if form.kind != "arc":
        side = form.side, form.side
        broken_rule = fault if form.kind == "maze" else _broken_rule
        known["why_not"] = broken_rule(inputs.reshape(side), answer.reshape(side))
        known["valid"] = known["why_not"] is None
    if labels is not None:
        known["right"] = bool(((answer == labels) | (labels == IGNORED_LABEL)).all())
    return known


def _broken_rule(puzzle: np.ndarray, answer: np.ndarray) -> str | None:
    """Returns a description of the rule of Sudoku that an answer breaks; None if it breaks none."""
    changed = int(((puzzle > 1) & (puzzle != answer)).sum())
    if changed:
        return f"{changed} of the digits that were given are changed"
    blank = int((answer <= 1).sum())
    if blank:
        return f"{blank} cells have no digit"
    return None if valid(answer[None] - 1)[0] else "a row, a column or a box has a digit twice"
