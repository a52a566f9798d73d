"""`plimsoll prepare sudoku`: puzzles from a table or generated, with their augmentations, in the published format.

Token 1 is a blank, 2 to side + 1 are the digits; 0 is padding, which no board has. No puzzle to train on, augmentations
included, has a solution that is tested on. Format and augmentation: build_sudoku_dataset.py of Tiny Recursive Models,
https://arxiv.org/abs/2510.04871.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import UInt8

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.held_out_rows import choose
from plimsoll.recipes.puzzles.prepare_options import SudokuOptions
from plimsoll.recipes.puzzles.source_table import Table, cells, find_table, rows_of
from plimsoll.recipes.puzzles.sudoku_grids import BLANK, BOXES, Boards, all_grids, dug, random_grids, solved, valid
from plimsoll.recipes.puzzles.sudoku_symmetry import augmented, fingerprints
from plimsoll.recipes.puzzles.writer import Group, write_boards

TEST_PUZZLES_4X4 = 20
"""Test puzzles of each grid that is held out."""
TOGETHER = 256
"""Puzzles that are generated at a time."""
ROWS_TOGETHER = 4096
"""Rows of a table that are checked at a time."""
_CHOICE, _GRIDS, _DIGGING, _GROUP = 21, 22, 23, 24
"""Numbers of the random streams of a seed."""

Pair = tuple[UInt8[np.ndarray, "side side"], UInt8[np.ndarray, "side side"]]
"""Puzzle and solution, 0 for a blank."""


def make(options: SudokuOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare sudoku`; progress goes to standard error."""
    if options.source is not None:
        return _from_table(options, options.source)
    answer = write_boards(
        options,
        _all_of_4x4(options) if options.size == 4 else _generated(options),
        vocab_size=options.size + 2,
        trains=options.train_size,
        tests=options.held_out_grids,
        copies=1 + options.num_aug,
        test_copies=TEST_PUZZLES_4X4 if options.size == 4 else 1,
    )
    return answer | {"left_out": 0}


def _from_table(options: SudokuOptions, source: str) -> dict[str, Any]:
    """Writes puzzles of a table, which is read twice: to choose, and to write. About 10 bytes a row stay in memory."""
    table = find_table(source)
    marks: dict[str, np.ndarray] = {}
    for split in table:
        marks_of_parts = [fingerprints(solutions) for _, solutions, _ in _parts(table, split, side=options.size)]
        marks[split] = np.concatenate([np.empty(0, np.uint64), *marks_of_parts])
    random = np.random.default_rng([options.seed, _CHOICE])
    choice = choose(table, marks, train_size=options.train_size, test_size=options.test_size, random=random)
    tests, trains = int(choice.to_test.sum()), int(choice.to_train.sum())

    def groups() -> Iterator[Group]:
        for puzzle, solution in _picked(table, choice.test_split, choice.to_test, options.size):
            yield "test", puzzle[None] + 1, solution[None] + 1
        yield from _augmented(options, _picked(table, "train", choice.to_train, options.size), choice.held_out)

    counts = {"trains": trains, "tests": tests, "copies": 1 + options.num_aug}
    return write_boards(options, groups(), vocab_size=options.size + 2, **counts) | {"left_out": choice.left_out}


def _generated(options: SudokuOptions) -> Iterator[Group]:
    """Yields groups of side 6 or 9, each from a grid of its own."""
    new = _new_puzzles(options)
    held_out = np.empty(0, np.uint64)
    for puzzle, solution in islice(new, options.held_out_grids):
        held_out = np.append(held_out, fingerprints(solution[None]))
        yield "test", puzzle[None] + 1, solution[None] + 1
    yield from _augmented(options, islice(new, options.train_size), held_out)


def _all_of_4x4(options: SudokuOptions) -> Iterator[Group]:
    """Yields groups of side 4, each of whose 288 grids is trained or tested on.

    Augmenting would turn one into another.
    """
    random = np.random.default_rng([options.seed, _CHOICE])
    grids = random.permutation(all_grids(4))[: options.held_out_grids + options.train_size]
    for number, grid in enumerate(grids):
        test = number < options.held_out_grids
        solutions = np.tile(grid, (TEST_PUZZLES_4X4 if test else 1 + options.num_aug, 1, 1))
        puzzles, _ = dug(solutions, options.difficulty, np.random.default_rng([options.seed, _DIGGING, number]))
        yield "test" if test else "train", puzzles + 1, solutions + 1


def _augmented(options: SudokuOptions, pairs: Iterable[Pair], held_out: np.ndarray) -> Iterator[Group]:
    """Yields a group to train on for each puzzle."""
    for number, (puzzle, solution) in enumerate(pairs):
        random = np.random.default_rng([options.seed, _GROUP, number])
        boards = augmented(puzzle, solution, count=options.num_aug, held_out=held_out, random=random)
        yield "train", boards[0] + 1, boards[1] + 1


def _new_puzzles(options: SudokuOptions) -> Iterator[Pair]:
    """Yields puzzles and solutions without end, no two with the same solution."""
    random = np.random.default_rng([options.seed, _GRIDS])
    seen = np.empty(0, np.uint64)
    while True:
        grids = random_grids(TOGETHER, options.size, random)
        marks, first = np.unique(fingerprints(grids), return_index=True)
        grids = grids[np.sort(first[~np.isin(marks, seen)])]
        seen = np.union1d(seen, marks)
        puzzles, good = dug(grids, options.difficulty, random)
        yield from zip(puzzles[good], grids[good], strict=True)


def _parts(table: Table, split: str, *, side: int) -> Iterator[tuple[Boards, Boards, list[str]]]:
    """Yields puzzles, solutions and their places in the file, a few thousand at a time.

    Uniqueness is checked later, by `_picked`: of a hard board of side 9 it takes 0.1 ms.
    """
    digits = {str(digit): digit for digit in range(1, side + 1)}
    with_blanks = digits | dict.fromkeys(BLANK, 0)
    board = f"a board of {side}x{side} has the digits 1 to {side}"
    blanks = f"{board}, and {' or '.join(map(repr, BLANK))} for a blank"
    board_of = partial(cells, side=side, sides=BOXES)
    remaining = rows_of(table[split])
    while rows := list(islice(remaining, ROWS_TOGETHER)):
        questions = b"".join(board_of(row, "question", with_blanks, written=blanks) for row in rows)
        answers = b"".join(board_of(row, "answer", digits, written=board) for row in rows)
        puzzles, solutions = (np.frombuffer(text, np.uint8).reshape(-1, side, side) for text in (questions, answers))
        places = [row.place for row in rows]
        agree = ((puzzles == 0) | (puzzles == solutions)).all((1, 2))
        for at in np.flatnonzero(~(agree & valid(solutions)))[:1]:
            count = int(solved(puzzles[at][None]).counts[0])
            raise DataError(f"{places[at]}: {_WRONG_ANSWER[count]}")
        yield puzzles, solutions, places


_WRONG_ANSWER = (
    "the puzzle has no solution. Leave the row out, or mend it",
    "the answer does not solve the puzzle, which has one solution. Mend the answer",
    "the puzzle has several solutions, and the answer is none of them. Leave the row out, or mend it",
)
"""Refusals of an answer that is not right, by the number of solutions: 0, 1, or 2 for several."""


def _picked(table: Table, split: str, which: np.ndarray, side: int) -> Iterator[Pair]:
    """Yields puzzles and solutions of the chosen rows, after checking that each has no other solution."""
    first = 0
    for puzzles, solutions, places in _parts(table, split, side=side):
        chosen = np.flatnonzero(which[first : first + len(places)])
        first += len(places)
        for at in chosen[solved(puzzles[chosen]).counts != 1][:1]:
            raise DataError(
                f"{places[at]}: the puzzle has several solutions, and only one of them would count as right. Leave"
                " the row out, or give it more digits"
            )
        yield from zip(puzzles[chosen], solutions[chosen], strict=True)
