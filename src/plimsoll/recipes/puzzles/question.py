"""The puzzle that is given to `plimsoll solve`, and what is wrong with an answer. Without JAX: what cannot be solved is
refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS
from plimsoll.recipes.puzzles.maze_paths import fault, question_fault, steps_to_spare
from plimsoll.recipes.puzzles.recipe import Puzzles
from plimsoll.recipes.puzzles.sudoku_grids import solved, valid
from plimsoll.recipes.puzzles.text import Form, Tokens, form_of, tokens_of
from plimsoll.types import IGNORED_LABEL

TEST = "test:"
"""Prefix of the number of an example of the test split, from 0."""
MOST_BYTES = 64 * 1024
"""Largest size of a file with one puzzle."""


def question(recipe: Puzzles, run: str, puzzle: str) -> dict[str, Any]:
    """Returns what the network is given for a puzzle: its characters, a file with them, or `test:17`.

    These are `inputs` and `identifier`, and `labels`, the answer of the test split (IGNORED_LABEL where nothing is
    asked), or None where it is not known.
    """
    form = solvable(recipe, run)
    if puzzle.startswith(TEST):
        tests, number = recipe.test_set, puzzle.removeprefix(TEST)
        if not (number.isascii() and number.isdigit()) or int(number) >= tests.examples:
            raise DataError(
                f"there is no example {number!r} in {tests.folder / tests.split}: it has {tests.examples:,}, so name"
                f" one of {TEST}0 to {TEST}{tests.examples - 1}"
            )
        example = {name: values[0].tolist() for name, values in tests.batch(np.array([int(number)])).items()}
        return {"inputs": example[INPUTS], "identifier": example[IDENTIFIERS], "labels": example[LABELS]}
    if form.kind == "arc":
        raise DataError(
            f"{run} solves ARC, whose tasks the network knows by their identifiers in the data set: one that is typed"
            " in has none. Name an example of its test split, like test:17"
        )
    text, source = _text(puzzle)
    tokens = tokens_of(text, form, source=source)
    if form.kind == "maze":
        wrong = question_fault(tokens.reshape(form.side, form.side))
        if wrong:
            raise DataError(f"{source} has no solution: it {wrong}")
    elif not solved(_board(tokens, form)).counts[0]:
        raise DataError(f"{source} has no solution: its digits contradict each other")
    return {"inputs": tokens.tolist(), "identifier": 0, "labels": None}


def solvable(recipe: Puzzles, run: str) -> Form:
    """Returns how the run's puzzles are written.

    Raises:
        RecipeError: They are of no form that is known.
    """
    form = form_of(seq_len=recipe.seq_len, vocab_size=recipe.vocab_size)
    if form is None:
        raise RecipeError(
            f"{run} has puzzles of {recipe.seq_len:,} tokens from a vocabulary of {recipe.vocab_size:,}: neither Sudoku"
            " nor a maze nor ARC, so it is not known how they are written. `plimsoll evaluate` says how many it solves"
        )
    return form


def _text(puzzle: str) -> tuple[str, str]:
    """Returns the characters of a puzzle, and what to call it."""
    path = Path(puzzle).expanduser()
    try:
        is_file = path.is_file()
    except OSError:  # longer than a name can be
        is_file = False
    if not is_file:
        return puzzle, f"the puzzle (there is no file {puzzle!r})" if 0 < len(puzzle) < 30 else "the puzzle"
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes: a file with one puzzle, and no more, was expected")
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path} cannot be read as text: {problem}") from None


def verdict(inputs: Tokens, answer: Tokens, form: Form, *, labels: Tokens | None = None) -> dict[str, Any]:
    """Returns what is known of an answer.

    `valid` says whether it keeps the rules, and `why_not` which one it breaks; ARC has no rules that are known. A
    Sudoku has `several_solutions` or not, and a valid path is so many cells `longer_than_needed`. With the data set's
    labels, the answer is `right` or not: tokens without a label do not count.
    """
    known: dict[str, Any] = {}
    if form.kind == "sudoku":
        wrong = _broken_rule(_board(inputs, form), _board(answer, form))
        several = bool(solved(_board(inputs, form)).counts[0] > 1)
        known = {"valid": wrong is None, "why_not": wrong, "several_solutions": several}
    if form.kind == "maze":
        maze = inputs.reshape(form.side, form.side), answer.reshape(form.side, form.side)
        wrong = fault(*maze)
        known = {"valid": wrong is None, "why_not": wrong}
        if wrong is None:
            known["longer_than_needed"] = steps_to_spare(*maze)
    if labels is not None:
        known["right"] = bool(((answer == labels) | (labels == IGNORED_LABEL)).all())
    return known


def _board(tokens: Tokens, form: Form) -> np.ndarray:
    """Returns one board: digits are counted from the token after the blank, and other tokens are blanks."""
    return np.maximum(np.asarray(tokens) - 1, 0).astype(np.uint8).reshape(1, form.side, form.side)


def _broken_rule(given: np.ndarray, answer: np.ndarray) -> str | None:
    """Returns which rule of Sudoku an answer breaks, in words; None if it keeps all of them."""
    if changed := int(((given > 0) & (given != answer)).sum()):
        return f"{changed} of the digits that were given are changed"
    if blank := int((answer == 0).sum()):
        return f"{blank} cells have no digit"
    return None if valid(answer)[0] else "a row, a column or a box has a digit twice"
