"""Puzzles as text and as tokens, and the text of `plimsoll solve`.

A Sudoku is digits, with dots or zeros for blanks and any white space; token 1 is a blank, 2 the digit 1. A maze is rows
of "# SGo" (wall, free, start, goal, path), tokens 1 to 5. A grid of ARC is rows of digits, one per colour, on a canvas
(`recipes/puzzles/arc_grids.py`). Token 0 is padding. The format is that of Tiny Recursive Models.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.arc_grids import CANVAS, VOCABULARY, cropped
from plimsoll.recipes.puzzles.maze_rules import CHARACTERS
from plimsoll.recipes.puzzles.sudoku_grids import BOXES

Tokens = Int[np.ndarray, " tokens"]

UNWRITTEN = "?"
"""Character for token 0 (padding), which a network may predict by mistake."""

GAP = 6
"""Spaces between a puzzle and its answer."""


class Form(NamedTuple):
    """Kind of a puzzle, and its number of rows and columns."""

    kind: Literal["sudoku", "maze", "arc"]
    side: int

    @property
    def characters(self) -> str:
        """Characters of the tokens from 1 on, for Sudoku and mazes."""
        return CHARACTERS if self.kind == "maze" else ".123456789"[: 1 + self.side]


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

    Raises DataError if length or characters do not fit `form`. `source` names the text in the message.
    """
    rows = text.replace("0", ".").split() if form.kind == "sudoku" else text.splitlines()
    cells = "".join(rows)
    if len(cells) != form.side**2 or not {*cells} <= {*form.characters}:
        raise DataError(
            f"{source} has {len(cells):,} cells out of {''.join(sorted({*cells}))[:40]!r}, and a {form.kind} of"
            f" {form.side}x{form.side} has {form.side**2:,}, row after row, out of {form.characters!r}"
        )
    return np.array([1 + form.characters.index(cell) for cell in cells], np.int32)


def rows_of(tokens: Tokens, form: Form) -> list[str]:
    """Returns a puzzle's tokens as text, a line per row, in the form that `tokens_of` reads.

    For ARC these are the rows of the grid without its canvas; there may be none.
    """
    if form.kind == "arc":
        return ["".join(map(str, row)) for row in cropped(tokens).tolist()]
    characters = UNWRITTEN + form.characters
    cells = "".join(characters[token] for token in np.asarray(tokens).tolist())
    return [cells[first : first + form.side] for first in range(0, len(cells), form.side)]


def solution_text(solution: Mapping[str, Any]) -> str:
    """Returns puzzle and answer side by side, then the checks of the answer."""
    before = grid_lines(solution["puzzle"], solution["box"])
    after = grid_lines(solution["answer"], solution["box"])
    width = max(map(len, before)) + GAP
    lines = [f"{left:<{width}}{right}" for left, right in zip_longest(before, after, fillvalue="")]
    return "\n".join(f"  {line}".rstrip() for line in [*lines, "", *verdict_lines(solution)])


def grid_lines(rows: Sequence[str], box: Sequence[int] | None) -> list[str]:
    """Returns the rows as lines, with white space between the boxes of a Sudoku, so that they can be typed in again."""
    if box is None:
        return list(rows) or ["(no grid)"]
    tall, wide = box
    lines = []
    for number, row in enumerate(rows):
        if number and number % tall == 0:
            lines.append("")
        lines.append(" ".join(row[first : first + wide] for first in range(0, len(row), wide)))
    return lines


def verdict_lines(solution: Mapping[str, Any]) -> list[str]:
    """Returns lines about validity, agreement with the data set's answer, and the supervision steps."""
    lines = []
    if "valid" in solution:
        lines.append("valid" if solution["valid"] else f"not valid: {solution['why_not']}")
    if "right" in solution:
        lines.append("the data set's answer" if solution["right"] else "not the data set's answer")
    steps = solution["supervision_steps"]
    halted = solution["would_halt_at"]
    when = f"it would have halted after step {halted}" if halted else "it would not have halted before"
    sure = f"{100 * solution['probabilities'][-1]:.1f} % sure at the end"
    return [*lines, f"{steps} supervision steps; {when}; {sure} (checkpoint of step {solution['step']:,})"]
