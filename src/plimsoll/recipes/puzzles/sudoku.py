"""`plimsoll prepare sudoku`: puzzles from a table or generated, with their augmentations, in the published format.

Token 1 is a blank, 2 to side + 1 are the digits; 0 is padding, which no board has. No puzzle to train on, augmentations
included, has a solution that is tested on. Format and augmentation: build_sudoku_dataset.py of Tiny Recursive Models,
https://arxiv.org/abs/2510.04871.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.progress import Spoken
from plimsoll.recipes.family import content_of
from plimsoll.recipes.puzzles.held_out_rows import choose
from plimsoll.recipes.puzzles.prepare_options import SudokuOptions, SudokuSet
from plimsoll.recipes.puzzles.source_table import Table, find_table
from plimsoll.recipes.puzzles.sudoku_grids import Boards, all_grids, dug, random_grids
from plimsoll.recipes.puzzles.sudoku_rows import Pairs, pairs, require_unique
from plimsoll.recipes.puzzles.sudoku_symmetry import augmented, fingerprints
from plimsoll.recipes.puzzles.writer import Progress, PuzzleFolder, SplitFiles

TEST_PUZZLES_4X4 = 20
"""Test puzzles of each grid that is held out."""
TOGETHER = 256
"""Puzzles that are generated at a time."""
_CHOICE, _GRIDS, _DIGGING, _GROUP = 21, 22, 23, 24
"""Numbers of the random streams of a seed."""


def make(options: SudokuOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare sudoku`; progress goes to standard error."""
    return build(content_of(options, SudokuSet), Path(options.out), Spoken("puzzles"))


def build(options: SudokuSet, out: Path, progress: Progress = lambda done, groups: None) -> dict[str, Any]:
    """Writes the folder `out` and returns what `prepare --json` prints."""
    if options.source is not None:
        return _from_table(options, options.source, out, progress)
    return _all_of_4x4(options, out, progress) if options.size == 4 else _generated(options, out, progress)


def _folder(options: SudokuSet, out: Path, *, train_rows: int, test_rows: int) -> PuzzleFolder:
    cells = options.size**2
    needed = (train_rows + test_rows) * (2 * cells + 12) + 4096
    return PuzzleFolder(out, seq_len=cells, vocab_size=options.size + 2, needed_bytes=needed)


def _add(split: SplitFiles, puzzles: Boards, solutions: Boards) -> None:
    rows = len(puzzles)
    split.add_group(puzzles.reshape(rows, -1) + 1, solutions.reshape(rows, -1) + 1)


def _from_table(options: SudokuSet, source: str, out: Path, progress: Progress) -> dict[str, Any]:
    """Writes puzzles of a table, which is read twice: to choose, and to write. About 10 bytes a row stay in memory."""
    table = find_table(source)

    def marks(split: str) -> np.ndarray:
        marks_of_parts = [fingerprints(part.solutions) for part in pairs(table, split, side=options.size)]
        return np.concatenate([np.empty(0, np.uint64), *marks_of_parts])

    random = np.random.default_rng([options.seed, _CHOICE])
    chosen = choose(table, marks, train_size=options.train_size, test_size=options.test_size, random=random)
    tests, trains = int(chosen.to_test.sum()), int(chosen.to_train.sum())
    with _folder(options, out, train_rows=trains * (1 + options.num_aug), test_rows=tests) as folder:
        for number, (puzzle, solution) in enumerate(_picked(table, chosen.test_split, chosen.to_test, options.size)):
            _add(folder.test, puzzle[None], solution[None])
            progress(number + 1, tests + trains)
        for number, (puzzle, solution) in enumerate(_picked(table, "train", chosen.to_train, options.size)):
            _add_augmented(options, folder, number, puzzle, solution, chosen.held_out)
            progress(tests + number + 1, tests + trains)
        return folder.finish(dataclasses.asdict(options)) | {"left_out": chosen.left_out}


def _picked(table: Table, split: str, which: np.ndarray, side: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields puzzles and solutions of the chosen rows, after checking that each has no other solution."""
    first = 0
    for part in pairs(table, split, side=side):
        mine = np.flatnonzero(which[first : first + len(part.places)])
        first += len(part.places)
        chosen = Pairs(part.puzzles[mine], part.solutions[mine], [part.places[at] for at in mine])
        require_unique(chosen)
        yield from zip(chosen.puzzles, chosen.solutions, strict=True)


def _add_augmented(
    options: SudokuSet,
    folder: PuzzleFolder,
    number: int,
    puzzle: np.ndarray,
    solution: np.ndarray,
    held_out: np.ndarray,
) -> None:
    random = np.random.default_rng([options.seed, _GROUP, number])
    _add(folder.train, *augmented(puzzle, solution, count=options.num_aug, held_out=held_out, random=random))


def _generated(options: SudokuSet, out: Path, progress: Progress) -> dict[str, Any]:
    """Writes puzzles of side 6 or 9, each group from a grid of its own."""
    groups = options.train_size + options.held_out_grids
    train_rows = options.train_size * (1 + options.num_aug)
    new = _new_puzzles(options)
    held_out = np.empty(0, np.uint64)
    with _folder(options, out, train_rows=train_rows, test_rows=options.held_out_grids) as folder:
        for number in range(options.held_out_grids):
            puzzle, solution = next(new)
            held_out = np.append(held_out, fingerprints(solution[None]))
            _add(folder.test, puzzle[None], solution[None])
            progress(number + 1, groups)
        for number in range(options.train_size):
            _add_augmented(options, folder, number, *next(new), held_out)
            progress(options.held_out_grids + number + 1, groups)
        return folder.finish(dataclasses.asdict(options)) | {"left_out": 0}


def _new_puzzles(options: SudokuSet) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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


def _all_of_4x4(options: SudokuSet, out: Path, progress: Progress) -> dict[str, Any]:
    """Writes puzzles of side 4, each of whose 288 grids is trained or tested on.

    Augmenting would turn one into another.
    """
    random = np.random.default_rng([options.seed, _CHOICE])
    grids = random.permutation(all_grids(4))
    count = options.held_out_grids
    rows = {"train": options.train_size * (1 + options.num_aug), "test": count * TEST_PUZZLES_4X4}
    with _folder(options, out, train_rows=rows["train"], test_rows=rows["test"]) as folder:
        for number, grid in enumerate(grids[: count + options.train_size]):
            split, each = (folder.test, TEST_PUZZLES_4X4) if number < count else (folder.train, 1 + options.num_aug)
            solutions = np.tile(grid, (each, 1, 1))
            puzzles, _ = dug(solutions, options.difficulty, np.random.default_rng([options.seed, _DIGGING, number]))
            _add(split, puzzles, solutions)
            progress(number + 1, count + options.train_size)
        return folder.finish(dataclasses.asdict(options)) | {"left_out": 0}
