"""`plimsoll prepare maze`: mazes from a table or generated, in the published format.

Tokens 1 to 5 are the characters "# SGo" (wall, free, start, goal, path); 0 is padding, which no maze has. Format:
build_maze_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871. There too the eight symmetries of a
maze are an option that is off if nothing is said, though the paper says 8 augmentations.
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
"""Draws of one maze with a path long enough."""
_CHOICE, _MAZES = 31, 32
"""Streams of random numbers of one seed."""


class Pair(NamedTuple):
    question: Maze
    answer: Maze


def make(options: MazeOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare maze`; progress goes to standard error."""
    return build(content_of(options, MazeSet), Path(options.out), Spoken("puzzles"))


def build(made: MazeSet, out: Path, progress: Progress = lambda done, groups: None) -> dict[str, Any]:
    """Writes the folder `out`. The answer is what `prepare --json` prints; `longer_paths` counts answers of a table
    whose path is not a shortest one."""
    return _generated(made, out, progress) if made.source is None else _from_table(made, made.source, out, progress)


def _generated(made: MazeSet, out: Path, progress: Progress) -> dict[str, Any]:
    tests = 1000 if made.test_size is None else made.test_size
    mazes = _new_mazes(made)
    groups = made.subsample_size + tests
    with _folder(made, out, made.subsample_size, tests) as folder:
        for number in range(groups):
            _add(folder, made, next(mazes), test=number < tests)
            progress(number + 1, groups)
        return folder.finish(dataclasses.asdict(made)) | {"left_out": 0, "longer_paths": 0}


def _new_mazes(made: MazeSet) -> Iterator[Pair]:
    """Without end; no two are symmetries of each other."""
    random = np.random.default_rng([made.seed, _MAZES])
    seen: set[int] = set()
    while True:
        for _ in range(TRIES):
            found = new_maze(made.size, shortest=made.shortest, random=random)
            if found is not None and (known := mark(found[0])) not in seen:
                seen.add(known)
                yield Pair(*found)
                break
        else:
            raise DataError(
                f"none of {TRIES} mazes of {made.size}x{made.size} was new and had one shortest path of"
                f" {made.shortest:,} steps or more: choose a smaller --shortest, or a larger --size"
            )


def mark(question: Maze) -> int:
    """Eight bytes that a maze and its symmetries share, and others do not."""
    weights = np.random.default_rng(0).integers(0, 2**64, question.size, np.uint64)
    views = np.stack([dihedral(question, which) for which in range(SYMMETRIES)])
    return int((views.reshape(SYMMETRIES, -1).astype(np.uint64) @ weights).min())


def _from_table(made: MazeSet, source: str, out: Path, progress: Progress) -> dict[str, Any]:
    table = find_table(source)

    def marks(split: str) -> np.ndarray:
        return np.array([mark(pair.question) for pair in _pairs(table, split, made.size)], np.uint64)

    random = np.random.default_rng([made.seed, _CHOICE])
    chosen = choose(table, marks, train_size=made.subsample_size, test_size=made.test_size, random=random)
    tests, trains = int(chosen.to_test.sum()), int(chosen.to_train.sum())
    longer = done = 0
    with _folder(made, out, trains, tests) as folder:
        for test, split, which in ((True, chosen.test_split, chosen.to_test), (False, "train", chosen.to_train)):
            for pair, wanted in zip(_pairs(table, split, made.size), which, strict=True):
                if wanted:
                    _add(folder, made, pair, test=test)
                    longer, done = longer + (steps_to_spare(*pair) > 0), done + 1
                    progress(done, tests + trains)
        found = folder.finish(dataclasses.asdict(made))
        return found | {"left_out": chosen.left_out, "longer_paths": longer}


def _folder(made: MazeSet, out: Path, trains: int, tests: int) -> PuzzleFolder:
    cells = made.size**2
    rows = trains * (SYMMETRIES if made.aug else 1) + tests
    return PuzzleFolder(out, seq_len=cells, vocab_size=1 + len(CHARACTERS), needed_bytes=rows * (2 * cells + 12) + 4096)


def _add(folder: PuzzleFolder, made: MazeSet, pair: Pair, *, test: bool) -> None:
    views = range(SYMMETRIES if made.aug and not test else 1)
    inputs, labels = (np.stack([dihedral(grid, which).ravel() for which in views]) for grid in pair)
    (folder.test if test else folder.train).add_group(inputs, labels)


def _pairs(table: Table, split: str, size: int) -> Iterator[Pair]:
    """Of every row, checked."""
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
    found = np.array([CHARACTERS.find(character) for character in text]) + 1
    if len(wrong := np.flatnonzero(found == 0)):
        raise DataError(
            f"{row.place}: character {wrong[0] + 1} of the {field} is {text[wrong[0]]!r}, and a maze is written with"
            f" {CHARACTERS!r} (wall, free, start, goal, path)"
        )
    return found.astype(np.uint8).reshape(size, size)
