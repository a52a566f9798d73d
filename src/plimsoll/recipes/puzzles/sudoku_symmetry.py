"""Augmentations of Sudoku puzzles: as hard, with other digits in other places.

Digits are permuted. Then the board is transposed (if boxes are square, half of the time), and bands of rows, rows
within each, stacks of columns and columns within each are permuted. A 9x9 board has 9! x 2 x 6^8 = 1.2e12.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt64

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.sudoku_grids import BOXES, Boards

TRIES = 200
"""Random draws before giving up on an augmentation whose solution is not held out."""


class Symmetries(NamedTuple):
    """Random augmentations of a board."""

    digits: UInt8[np.ndarray, "count digits"]
    """New digit of each digit; 0, a blank, stays."""
    rows: Int[np.ndarray, "count side"]
    """Row that each row is taken from, after transposing; likewise for columns."""
    cols: Int[np.ndarray, "count side"]
    transposed: Bool[np.ndarray, " count"]


def random_symmetries(count: int, side: int, random: np.random.Generator) -> Symmetries:
    """Returns `count` random augmentations of boards of that side."""
    tall, wide = BOXES[side]
    digits = np.zeros((count, side + 1), np.uint8)
    digits[:, 1:] = random.permuted(np.tile(np.arange(1, side + 1, dtype=np.uint8), (count, 1)), axis=1)
    transposed = random.random(count) < 0.5 if tall == wide else np.zeros(count, bool)
    return Symmetries(digits, _orders(count, side, tall, random), _orders(count, side, wide, random), transposed)


def _orders(count: int, side: int, together: int, random: np.random.Generator) -> np.ndarray:
    """Returns permutations of lines: bands of `together` lines in any order, and the lines of each in any order."""
    bands = random.permuted(np.tile(np.arange(side // together), (count, 1)), axis=1)
    lines = random.permuted(np.tile(np.arange(together), (count, side // together, 1)), axis=2)
    return (bands[:, :, None] * together + lines).reshape(count, side)


def applied(board: UInt8[np.ndarray, "side side"], by: Symmetries) -> Boards:
    """Returns one board under each of the augmentations."""
    each = np.arange(len(by.transposed))[:, None, None]
    turned = np.stack([board, board.T])[by.transposed.astype(int)]
    return by.digits[each, turned[each, by.rows[:, :, None], by.cols[:, None, :]]]


def fingerprints(boards: Boards) -> UInt64[np.ndarray, " boards"]:
    """Returns eight bytes per board; two of a million boards share them with a probability below 10^-7."""
    flat = boards.reshape(len(boards), -1).astype(np.uint64)
    return flat @ np.random.default_rng(0).integers(0, 2**64, flat.shape[1], np.uint64)


def augmented(
    puzzle: UInt8[np.ndarray, "side side"],
    solution: UInt8[np.ndarray, "side side"],
    *,
    count: int,
    held_out: UInt64[np.ndarray, " known"],
    random: np.random.Generator,
) -> tuple[Boards, Boards]:
    """Returns the puzzle and `count` augmentations with their solutions, none of which is `held_out`."""
    puzzles, solutions = np.tile(puzzle, (1 + count, 1, 1)), np.tile(solution, (1 + count, 1, 1))
    left = np.arange(1, 1 + count)
    for _ in range(TRIES):
        if not len(left):
            return puzzles, solutions
        by = random_symmetries(len(left), len(puzzle), random)
        puzzles[left], solutions[left] = applied(puzzle, by), applied(solution, by)
        left = left[np.isin(fingerprints(solutions[left]), held_out)]
    raise DataError(
        f"after {TRIES} draws {len(left):,} of {count:,} augmentations of a puzzle still have a solution that is held"
        " out for testing: ask for a smaller --test-size, or for --num-aug 0"
    )
