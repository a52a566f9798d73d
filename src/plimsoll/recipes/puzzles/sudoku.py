"""`plimsoll prepare sudoku`: puzzles from CSV files or generated, in the data format of Tiny Recursive Models.

Token 1 is a blank, 2 to side + 1 are the digits; 0 is padding, which no board has. No training puzzle, augmented or
not, has a solution of the test split. An augmentation is as hard as its puzzle: digits are permuted, the board is
transposed (if boxes are square, half of the time), and bands of rows, rows within each, stacks of columns and columns
within each are permuted. A 9x9 board has 9! x 2 x 6^8 = 1.2e12 augmentations. Format and augmentation:
build_sudoku_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.board_table import Board, BoardTable, Marks, choose, fingerprints
from plimsoll.recipes.puzzles.prepare_options import SudokuOptions
from plimsoll.recipes.puzzles.sudoku_grids import BOXES, Boards, all_grids_of_4x4, cleared, random_grids, valid
from plimsoll.recipes.puzzles.writer import Group, Split, group_of_boards, write_puzzles

TEST_PUZZLES_4X4 = 20
"""Number of test puzzles for each held-out grid, their common solution."""
TOGETHER = 256
"""Puzzles that are generated at a time."""
TRIES = 200
"""Maximum number of draws of augmentations until no solution is held out; then DataError is raised."""
_CHOICE, _GRIDS, _CLEARING, _GROUP = 21, 22, 23, 24
"""Constants in the seeds of the random generators, one per purpose."""

Pair = tuple[Board, Board]
"""Puzzle and solution, 0 for a blank."""


def make(options: SudokuOptions) -> dict[str, Any]:
    """Writes the data set of `plimsoll prepare sudoku`; progress goes to standard error."""
    count = options.held_out_grids + options.train_size
    if options.source is not None:
        count, groups = _of_table(options, options.source)
    elif options.size == 4:
        groups = _all_of_4x4(options)
    else:
        groups = _generated(options)
    return write_puzzles(options, groups, count=count, seq_len=options.size**2, vocab_size=options.size + 2)


def _of_table(options: SudokuOptions, source: str) -> tuple[int, Iterator[Group]]:
    """Returns the number of groups from CSV files, and the groups."""
    codes = {".": 0} | {str(digit): digit for digit in range(options.size + 1)}
    table = BoardTable(source, side=options.size, codes=codes, are_solved=_are_solved)
    random = np.random.default_rng([options.seed, _CHOICE])
    choice = choose(
        table,
        mark=lambda _, solutions: fingerprints(solutions),
        train_size=options.train_size,
        test_size=options.test_size,
        random=random,
    )

    tests = table.chosen(choice.test_split, choice.to_test)
    trains = table.chosen("train", choice.to_train)
    return choice.count, _groups(options, tests, trains, choice.held_out)


def _are_solved(puzzles: Boards, solutions: Boards) -> np.ndarray:
    return ((puzzles == 0) | (puzzles == solutions)).all((1, 2)) & valid(solutions)


def _generated(options: SudokuOptions) -> Iterator[Group]:
    """Returns groups of generated puzzles of side 6 or 9, each with its own solution grid."""
    puzzles = _new_puzzles(options)
    tests = list(islice(puzzles, options.held_out_grids))
    held_out = fingerprints(np.stack([solution for _, solution in tests]))
    return _groups(options, tests, islice(puzzles, options.train_size), held_out)


def _all_of_4x4(options: SudokuOptions) -> Iterator[Group]:
    """Yields groups of generated puzzles of side 4, one for each solution grid, which is for training or testing.

    There are no augmentations, since they would turn one grid into another.
    """
    random = np.random.default_rng([options.seed, _CHOICE])
    grids = random.permutation(all_grids_of_4x4())[: options.held_out_grids + options.train_size]
    for number, grid in enumerate(grids):
        is_test = number < options.held_out_grids
        solutions = np.tile(grid, (TEST_PUZZLES_4X4 if is_test else 1 + options.num_aug, 1, 1))
        random = np.random.default_rng([options.seed, _CLEARING, number])
        puzzles = cleared(solutions, options.difficulty, random)
        yield _group("test" if is_test else "train", puzzles, solutions)


def _new_puzzles(options: SudokuOptions) -> Iterator[Pair]:
    """Yields puzzles and solutions without end, no two with the same solution."""
    random = np.random.default_rng([options.seed, _GRIDS])
    seen = np.empty(0, np.uint64)
    while True:
        grids = random_grids(TOGETHER, options.size, random)
        marks, first = np.unique(fingerprints(grids), return_index=True)
        grids = grids[np.sort(first[~np.isin(marks, seen)])]
        seen = np.union1d(seen, marks)
        yield from zip(cleared(grids, options.difficulty, random), grids, strict=True)


def _groups(options: SudokuOptions, tests: Iterable[Pair], trains: Iterable[Pair], held_out: Marks) -> Iterator[Group]:
    """Yields a group for each test puzzle, then one for each training puzzle and its augmentations."""
    for puzzle, solution in tests:
        yield _group("test", puzzle[None], solution[None])
    for number, (puzzle, solution) in enumerate(trains):
        random = np.random.default_rng([options.seed, _GROUP, number])
        boards = augmented(puzzle, solution, count=options.num_aug, held_out=held_out, random=random)
        yield _group("train", *boards)


def _group(split: Split, puzzles: Boards, solutions: Boards) -> Group:
    return group_of_boards(split, puzzles + 1, solutions + 1)


def augmented(
    puzzle: Board, solution: Board, *, count: int, held_out: Marks, random: np.random.Generator
) -> tuple[Boards, Boards]:
    """Returns the puzzle and `count` augmentations, with their solutions. No augmented solution's hash is in
    `held_out`."""
    puzzles = np.tile(puzzle, (1 + count, 1, 1))
    solutions = np.tile(solution, (1 + count, 1, 1))
    missing = np.arange(1, 1 + count)
    for _ in range(TRIES):
        if not len(missing):
            return puzzles, solutions
        puzzles[missing], solutions[missing] = random_symmetries(puzzle, solution, count=len(missing), random=random)
        missing = missing[np.isin(fingerprints(solutions[missing]), held_out)]
    raise DataError(
        f"after {TRIES} draws {len(missing):,} of {count:,} augmentations of a puzzle still have a solution that is"
        " held out for testing: ask for a smaller --test-size, or for --num-aug 0"
    )


def random_symmetries(*boards: Board, count: int, random: np.random.Generator) -> list[Boards]:
    """Returns `count` random augmentations of each board. All boards are augmented alike."""
    # Draw the augmentations: the new digit of each digit, and the source index of each row and column.
    side = len(boards[0])
    tall, wide = BOXES[side]
    digits = np.zeros((count, side + 1), np.uint8)
    digits[:, 1:] = random.permuted(np.tile(np.arange(1, side + 1, dtype=np.uint8), (count, 1)), axis=1)
    transposed = random.random(count) < 0.5 if tall == wide else np.zeros(count, bool)
    rows = _random_orders(count, side, tall, random)[:, :, None]
    cols = _random_orders(count, side, wide, random)[:, None, :]

    # The augmented boards.
    numbers = np.arange(count)[:, None, None]
    changed = []
    for board in boards:
        turned = np.stack([board, board.T])[transposed.astype(int)]
        changed.append(digits[numbers, turned[numbers, rows, cols]])
    return changed


def _random_orders(count: int, side: int, together: int, random: np.random.Generator) -> np.ndarray:
    """Returns permutations of rows or columns: bands of `together` lines in any order, and lines in any order within
    bands."""
    bands = random.permuted(np.tile(np.arange(side // together), (count, 1)), axis=1)
    lines = random.permuted(np.tile(np.arange(together), (count, side // together, 1)), axis=2)
    return (bands[:, :, None] * together + lines).reshape(count, side)
