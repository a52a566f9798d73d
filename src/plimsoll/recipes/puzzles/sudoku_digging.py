"""Sudoku puzzles from complete grids: cells are cleared in a random order, as long as the solution stays what it is."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from plimsoll.recipes.puzzles.sudoku_grids import Boards, by_singles, solved

EASY, FEWEST, MOST = 0.5, 0.25, 0.6
"""Shares of the cells that are given: in an easy puzzle, and the least and the most that a mixed one aims at."""


def dug(grids: Boards, difficulty: str, random: np.random.Generator) -> tuple[Boards, Bool[np.ndarray, " boards"]]:
    """A puzzle of each grid, with that one solution; and which are of the difficulty (puzzle_options.SudokuSet)."""
    count, cells = len(grids), grids[0].size
    puzzles = grids.reshape(count, cells).copy()
    aims = _aims(difficulty, count, cells, random)
    without_guess = difficulty in ("easy", "medium")
    order = random.permuted(np.tile(np.arange(cells), (count, 1)), axis=1)
    for step in range(cells):
        going_on = np.flatnonzero((puzzles > 0).sum(axis=1) > aims)
        if not len(going_on):
            break
        cleared = puzzles[going_on]
        cleared[np.arange(len(going_on)), order[going_on, step]] = 0
        boards = cleared.reshape(-1, *grids.shape[1:])
        good = by_singles(boards) if without_guess else solved(boards).counts == 1
        puzzles[going_on[good]] = cleared[good]
    made = puzzles.reshape(grids.shape)
    return made, ~by_singles(made) if difficulty == "hard" else np.ones(count, bool)


def _aims(difficulty: str, count: int, cells: int, random: np.random.Generator) -> np.ndarray:
    """Cells that stay given, at least."""
    if difficulty == "easy":
        return np.full(count, round(EASY * cells))
    if difficulty == "mixed":
        return random.integers(round(FEWEST * cells), round(MOST * cells), count, endpoint=True)
    return np.zeros(count, int)
