"""Puzzles as text and as tokens.

A Sudoku is digits, with dots or zeros for blanks and any white space; token 1 is a blank, 2 the digit 1. A maze is rows
of "# SGo" (wall, free, start, goal, path), tokens 1 to 5. A grid of ARC is rows of digits, one per colour, on a canvas
(`recipes/puzzles/arc_grids.py`). Token 0 is padding. The format is that of Tiny Recursive Models.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.arc_grids import CANVAS, VOCABULARY, cropped
from plimsoll.recipes.puzzles.maze_paths import CHARACTERS
from plimsoll.recipes.puzzles.sudoku_grids import BLANK, BOXES

Tokens = Int[np.ndarray, " tokens"]

UNWRITTEN = "?"
"""Character for token 0 in an answer, which a network may predict although it means nothing there."""


class Form(NamedTuple):
    """Kind of a puzzle, and its number of rows and columns."""

    kind: Literal["sudoku", "maze", "arc"]
    side: int

    @property
    def words(self) -> str:
        """Kind and size in words."""
        return f"{ {'sudoku': 'Sudoku', 'maze': 'maze', 'arc': 'grid of ARC'}[self.kind] } of {self.side}x{self.side}"

    @property
    def characters(self) -> str:
        """Characters of the tokens from 1 on; ARC's are on a canvas."""
        return CHARACTERS if self.kind == "maze" else BLANK[0] + "".join(map(str, range(1, self.side + 1)))


def form_of(*, seq_len: int, vocab_size: int) -> Form | None:
    """Returns the kind of puzzle with these sizes; None if no known kind has them."""
    side = math.isqrt(seq_len)
    if side * side != seq_len:
        return None
    if (side, vocab_size) == (CANVAS, VOCABULARY):
        return Form("arc", side)
    if side in BOXES and vocab_size == side + 2:
        return Form("sudoku", side)
    return Form("maze", side) if vocab_size == 1 + len(CHARACTERS) else None


def tokens_of(text: str, form: Form, *, source: str) -> Tokens:
    """Returns the tokens of a Sudoku or a maze.

    Raises DataError for other lengths and characters; `source` is the text's name in that message.
    """
    if form.kind == "sudoku":
        cells = "".join(text.split()).replace(BLANK[1], BLANK[0])
        written = f"with the digits 1 to {form.side}, and {' or '.join(map(repr, BLANK))} for a blank"
    else:
        rows = text.strip("\r\n").splitlines()
        # Spaces that a line lost at its end are free cells.
        cells = "".join(row.ljust(form.side) for row in rows) if len(rows) == form.side else "".join(rows)
        written = f"with {CHARACTERS!r} (wall, free, start, goal, path)"
    for at, cell in enumerate(cells):
        if cell not in form.characters:
            raise DataError(f"cell {at + 1} of {source} is {cell!r}, and a {form.words} is written {written}")
    if len(cells) != form.side**2:
        raise DataError(
            f"{source} has {len(cells):,} cells, and a {form.words} has {form.side**2:,}, row after row, written"
            f" {written}"
        )
    return np.array([1 + form.characters.index(cell) for cell in cells], np.int32)


def rows_of(tokens: Tokens, form: Form) -> list[str]:
    """Returns a line of characters per row, as `tokens_of` reads them.

    Of ARC it is the grid without its canvas, which may be empty.
    """
    if form.kind == "arc":
        return ["".join(map(str, row)) for row in cropped(tokens).tolist()]
    characters = UNWRITTEN + form.characters
    cells = "".join(characters[token] for token in np.asarray(tokens).tolist())
    return [cells[first : first + form.side] for first in range(0, len(cells), form.side)]
