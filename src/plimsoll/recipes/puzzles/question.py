"""The puzzle that is given to `plimsoll solve`, and what is wrong with an answer. Without JAX: what cannot be solved is
refused at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS, PuzzleSet
from plimsoll.recipes.puzzles.maze_paths import GOAL, PATH, START, fault, steps_to_spare
from plimsoll.recipes.puzzles.recipe import Puzzles
from plimsoll.recipes.puzzles.sudoku_grids import solved, valid
from plimsoll.recipes.puzzles.text import Form, Tokens, form_of, tokens_of
from plimsoll.types import IGNORED_LABEL

TEST = "test:"
"""Before the number of an example of the test split, from 0."""
MOST_BYTES = 64 * 1024
"""Of a file with one puzzle."""


@dataclass(frozen=True)
class Question:
    """What the network is given, and where known what it should say."""

    inputs: list[int]
    identifier: int = 0
    labels: list[int] | None = None
    """IGNORED_LABEL where nothing is asked."""


def request_of(recipe: Puzzles, run: str, puzzle: str) -> dict[str, Any]:
    """Returns the fields of the `Question` for `solve.solve`: see `question`."""
    return asdict(question(recipe, run, puzzle))


def question(recipe: Puzzles, run: str, puzzle: str) -> Question:
    """Returns what the network is given for a puzzle: its characters, a file with them, or `test:17`."""
    form = solvable(recipe, run)
    if puzzle.startswith(TEST):
        return _of_test_split(recipe.test_set, puzzle)
    if form.kind == "arc":
        raise DataError(
            f"{run} solves ARC, whose tasks the network knows by their identifiers in the data set: one that is typed"
            " in has none. Name an example of its test split, like test:17"
        )
    text, source = _text(puzzle)
    tokens = tokens_of(text, form, source=source)
    if wrong := _why_unsolvable(tokens, form):
        raise DataError(f"{source} has no solution: {wrong}")
    return Question(tokens.tolist())


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


def _of_test_split(tests: PuzzleSet, puzzle: str) -> Question:
    number = puzzle.removeprefix(TEST)
    if not (number.isascii() and number.isdigit()) or int(number) >= tests.examples:
        raise DataError(
            f"there is no example {number!r} in {tests.folder / tests.split}: it has {tests.examples:,}, so name one of"
            f" {TEST}0 to {TEST}{tests.examples - 1}"
        )
    found = {name: values[0].tolist() for name, values in tests.batch(np.array([int(number)])).items()}
    return Question(found[INPUTS], found[IDENTIFIERS], found[LABELS])


def _text(puzzle: str) -> tuple[str, str]:
    """And what to call it."""
    try:
        is_file = Path(puzzle).expanduser().is_file()
    except OSError:  # longer than a name can be
        is_file = False
    if not is_file:
        return puzzle, f"the puzzle (there is no file {puzzle!r})" if 0 < len(puzzle) < 30 else "the puzzle"
    path = Path(puzzle).expanduser()
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes: a file with one puzzle, and no more, was expected")
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path} cannot be read as text: {problem}") from None


def _why_unsolvable(tokens: Tokens, form: Form) -> str | None:
    if form.kind == "sudoku":
        return None if solutions(tokens, form) else "its digits contradict each other"
    grid = tokens.reshape(form.side, form.side)
    for token, name in ((START, "S"), (GOAL, "G")):
        if (count := int((grid == token).sum())) != 1:
            return f"it has {count} cells {name}, and a maze has one"
    if (grid == PATH).any():
        return "it has cells of a path (o), which are for the answer"
    return None


def solutions(tokens: Tokens, form: Form) -> int:
    """Of a Sudoku: none, 1, or 2 for several."""
    return int(solved(_board(tokens, form)).counts[0])


def _board(tokens: Tokens, form: Form) -> np.ndarray:
    """Of one; digits are counted from the token after the blank, and what is none of them is one."""
    return np.maximum(np.asarray(tokens) - 1, 0).astype(np.uint8).reshape(1, form.side, form.side)


def why_wrong(asked: Tokens, answered: Tokens, form: Form) -> str | None:
    """What rule the answer breaks, in words; None where it keeps all of them. Of ARC nobody knows the rules."""
    if form.kind == "maze":
        grids = (tokens.reshape(form.side, form.side) for tokens in (asked, answered))
        return fault(*grids)
    given, found = (_board(tokens, form) for tokens in (asked, answered))
    changed, blank = int(((given > 0) & (given != found)).sum()), int((found == 0).sum())
    if changed:
        return f"{changed} of the digits that were given are changed"
    if blank:
        return f"{blank} cells have no digit"
    return None if valid(found)[0] else "a row, a column or a box has a digit twice"


def longer_than_needed(asked: Tokens, answered: Tokens, form: Form) -> int:
    """Cells of a maze's path beyond those of a shortest one; the answer must be a path."""
    return steps_to_spare(*(tokens.reshape(form.side, form.side) for tokens in (asked, answered)))


def is_right(answered: Tokens, labels: Tokens) -> bool:
    """Whether every token that was asked for is the data set's."""
    return bool(((answered == labels) | (labels == IGNORED_LABEL)).all())
