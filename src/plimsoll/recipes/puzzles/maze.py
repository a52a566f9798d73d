"""`plimsoll prepare maze`: mazes from a table or generated, in the published format.

Tokens 1 to 5 are the characters "# SGo" (wall, free, start, goal, path); 0 is padding, which no maze has. Format:
build_maze_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871. There too the eight symmetries of a
maze are off by default, although the paper says 8 augmentations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError
from plimsoll.recipes.family import content_of
from plimsoll.recipes.puzzles.dihedral import SYMMETRIES, dihedral
from plimsoll.recipes.puzzles.held_out_rows import choose
from plimsoll.recipes.puzzles.maze_paths import CHARACTERS, Maze, fault, new_maze, steps_to_spare
from plimsoll.recipes.puzzles.prepare_options import MazeOptions, MazeSet
from plimsoll.recipes.puzzles.source_table import Row, Table, find_table
from plimsoll.recipes.puzzles.writer import Progress, PuzzleFolder

TRIES = 500
"""Random draws before giving up on a maze with a path that is long enough."""
_CHOICE, _MAZES = 31, 32
"""Numbers of the random streams of a seed."""


class Pair(NamedTuple):
    question: Maze
    answer: Maze


def make(options: MazeOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare maze`; progress goes to standard error."""
    return build(content_of(options, MazeSet), Path(options.out), Spoken("puzzles"))


def build(options: MazeSet, out: Path, progress: Progress = lambda done, groups: None) -> dict[str, Any]:
    """Writes the folder `out` and returns what `prepare --json` prints.

    Its `longer_paths` counts answers of a table whose path is longer than a shortest one.
    """
    return (
        _generated(options, out, progress)
        if options.source is None
        else _from_table(options, options.source, out, progress)
    )


def _generated(options: MazeSet, out: Path, progress: Progress) -> dict[str, Any]:
    tests = 1000 if options.test_size is None else options.test_size
    mazes = _new_mazes(options)
    groups = options.subsample_size + tests
    with _folder(options, out, options.subsample_size, tests) as folder:
        for number in range(groups):
            _add(folder, options, next(mazes), test=number < tests)
            progress(number + 1, groups)
        return folder.finish(dataclasses.asdict(options)) | {"left_out": 0, "longer_paths": 0}


def _new_mazes(options: MazeSet) -> Iterator[Pair]:
    """Yields mazes without end, no two of which are symmetries of each other."""
    random = np.random.default_rng([options.seed, _MAZES])
    seen: set[int] = set()
    while True:
        for _ in range(TRIES):
            pair = new_maze(options.size, shortest=options.shortest, random=random)
            if pair is not None and (known := mark(pair[0])) not in seen:
                seen.add(known)
                yield Pair(*pair)
                break
        else:
            raise DataError(
                f"none of {TRIES} mazes of {options.size}x{options.size} was new and had one shortest path of"
                f" {options.shortest:,} steps or more: choose a smaller --shortest, or a larger --size"
            )


def mark(question: Maze) -> int:
    """Returns eight bytes that a maze shares with its symmetries only."""
    weights = np.random.default_rng(0).integers(0, 2**64, question.size, np.uint64)
    views = np.stack([dihedral(question, which) for which in range(SYMMETRIES)])
    return int((views.reshape(SYMMETRIES, -1).astype(np.uint64) @ weights).min())


def _from_table(options: MazeSet, source: str, out: Path, progress: Progress) -> dict[str, Any]:
    table = find_table(source)

    def marks(split: str) -> np.ndarray:
        return np.array([mark(pair.question) for pair in _pairs(table, split, options.size)], np.uint64)

    random = np.random.default_rng([options.seed, _CHOICE])
    chosen = choose(table, marks, train_size=options.subsample_size, test_size=options.test_size, random=random)
    tests, trains = int(chosen.to_test.sum()), int(chosen.to_train.sum())
    longer = done = 0
    with _folder(options, out, trains, tests) as folder:
        for test, split, which in ((True, chosen.test_split, chosen.to_test), (False, "train", chosen.to_train)):
            for pair, wanted in zip(_pairs(table, split, options.size), which, strict=True):
                if wanted:
                    _add(folder, options, pair, test=test)
                    longer, done = longer + (steps_to_spare(*pair) > 0), done + 1
                    progress(done, tests + trains)
        result = folder.finish(dataclasses.asdict(options))
        return result | {"left_out": chosen.left_out, "longer_paths": longer}


def _folder(options: MazeSet, out: Path, trains: int, tests: int) -> PuzzleFolder:
    cells = options.size**2
    rows = trains * (SYMMETRIES if options.aug else 1) + tests
    return PuzzleFolder(out, seq_len=cells, vocab_size=1 + len(CHARACTERS), needed_bytes=rows * (2 * cells + 12) + 4096)


def _add(folder: PuzzleFolder, options: MazeSet, pair: Pair, *, test: bool) -> None:
    views = range(SYMMETRIES if options.aug and not test else 1)
    inputs, labels = (np.stack([dihedral(grid, which).ravel() for which in views]) for grid in pair)
    (folder.test if test else folder.train).add_group(inputs, labels)


def _pairs(table: Table, split: str, size: int) -> Iterator[Pair]:
    """Yields mazes and paths of all rows, each checked."""
    for rows in table.parts(split):
        for row in rows:
            pair = Pair(_grid(row, "question", size), _grid(row, "answer", size))
            if wrong := fault(*pair):
                raise DataError(f"{row.place}: {wrong}. Leave the row out, or mend it")
            yield pair


def _grid(row: Row, field: str, size: int) -> Maze:
    text = str(getattr(row, field))
    if len(text) != size * size:
        side = round(len(text) ** 0.5)
        hint = f"; with --size {side} it would be one of {side}x{side}" if side * side == len(text) else ""
        raise DataError(
            f"{row.place}: the {field} has {len(text)} characters, and a maze of {size}x{size} has {size * size}{hint}"
        )
    cells = np.array([CHARACTERS.find(character) for character in text]) + 1
    if len(wrong := np.flatnonzero(cells == 0)):
        raise DataError(
            f"{row.place}: character {wrong[0] + 1} of the {field} is {text[wrong[0]]!r}, and a maze is written with"
            f" {CHARACTERS!r} (wall, free, start, goal, path)"
        )
    return cells.astype(np.uint8).reshape(size, size)
