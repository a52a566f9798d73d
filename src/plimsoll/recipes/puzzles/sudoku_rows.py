"""Sudoku boards from rows of text, each checked: characters, answer, and uniqueness of the solution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.source_table import Row, Table
from plimsoll.recipes.puzzles.sudoku_grids import BLANK, Boards, solved, valid


class Pairs(NamedTuple):
    """Puzzles with their solutions, and where each stands in its file."""

    puzzles: Boards
    solutions: Boards
    places: list[str]


def pairs(table: Table, split: str, *, side: int) -> Iterator[Pairs]:
    """Yields all rows of a split, a few thousand at a time. Uniqueness is checked later, by `require_unique`."""
    for rows in table.parts(split):
        puzzles = _boards(rows, 1, side, "".join(BLANK))
        solutions = _boards(rows, 2, side, "")
        places = [row.place for row in rows]
        agree = ((puzzles == 0) | (puzzles == solutions)).all((1, 2))
        for at in np.flatnonzero(~(agree & valid(solutions)))[:1]:
            raise DataError(f"{places[at]}: {_why_not(puzzles[at])}")
        yield Pairs(puzzles, solutions, places)


def require_unique(pairs: Pairs) -> None:
    """Raises DataError for the first puzzle with several solutions. Takes 0.1 ms for a hard one of side 9."""
    for at in np.flatnonzero(solved(pairs.puzzles).counts != 1)[:1]:
        raise DataError(
            f"{pairs.places[at]}: the puzzle has several solutions, and only one of them would count as right. Leave"
            " the row out, or give it more digits"
        )


def _why_not(puzzle: np.ndarray) -> str:
    """Returns what is wrong with a row whose answer is not right."""
    count = int(solved(puzzle[None]).counts[0])
    if not count:
        return "the puzzle has no solution. Leave the row out, or mend it"
    if count == 1:
        return "the answer does not solve the puzzle, which has one solution. Mend the answer"
    return "the puzzle has several solutions, and the answer is none of them. Leave the row out, or mend it"


def _boards(rows: list[Row], field: int, side: int, blanks: str) -> Boards:
    cells, kind = side * side, Row._fields[field]
    allowed = {**{str(digit): digit for digit in range(1, side + 1)}, **dict.fromkeys(blanks, 0)}
    for row in rows:
        text = str(row[field])
        if len(text) != cells:
            other = {16: 4, 36: 6, 81: 9}.get(len(text))
            hint = f"; with --size {other} it would be one of {other}x{other}" if other else ""
            raise DataError(
                f"{row.place}: the {kind} has {len(text)} characters, and one of {side}x{side} has {cells}{hint}"
            )
        for at, character in enumerate(text):
            if character not in allowed:
                dots = f", and {' or '.join(repr(blank) for blank in blanks)} for a blank" if blanks else ""
                raise DataError(
                    f"{row.place}: character {at + 1} of the {kind} is {character!r}, and a board of {side}x{side} has"
                    f" the digits 1 to {side}{dots}"
                )
    flat = [allowed[character] for row in rows for character in str(row[field])]
    return np.array(flat, np.uint8).reshape(-1, side, side)
