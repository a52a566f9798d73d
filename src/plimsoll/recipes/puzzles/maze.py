"""`plimsoll prepare maze`: mazes from a table or generated, in the published format.

Tokens 1 to 5 are the characters "# SGo" (wall, free, start, goal, path); 0 is padding, which no maze has. Format:
build_maze_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871. There too the eight symmetries of a
maze are off by default, although the paper says 8 augmentations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.dihedral import SYMMETRIES, dihedral
from plimsoll.recipes.puzzles.held_out_rows import choose
from plimsoll.recipes.puzzles.maze_paths import CHARACTERS, Maze, fault, new_maze, steps_to_spare
from plimsoll.recipes.puzzles.prepare_options import MazeOptions
from plimsoll.recipes.puzzles.source_table import Table, cells, find_table, rows_of
from plimsoll.recipes.puzzles.writer import Group, Split, write_boards

VOCABULARY = 1 + len(CHARACTERS)
TRIES = 500
"""Random draws before giving up on a maze with a path that is long enough."""
_CHOICE, _MAZES = 31, 32
"""Numbers of the random streams of a seed."""


def make(options: MazeOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare maze`; progress goes to standard error.

    `longer_paths` of the answer counts answers of a table whose path is longer than a shortest one.
    """
    mazes: Iterator[tuple[Split, Maze, Maze]]
    if options.source is not None:
        mazes, trains, tests, left_out = _from_table(options, options.source)
    else:
        tests, trains, left_out = 1000 if options.test_size is None else options.test_size, options.subsample_size, 0
        new = enumerate(islice(_new_mazes(options), tests + trains))
        mazes = (("test" if number < tests else "train", *maze) for number, maze in new)
    longer = 0

    def groups() -> Iterator[Group]:
        nonlocal longer
        for split, question, answer in mazes:
            longer += options.source is not None and steps_to_spare(question, answer) > 0
            views = range(SYMMETRIES if options.aug and split == "train" else 1)
            questions, answers = (np.stack([dihedral(grid, which) for which in views]) for grid in (question, answer))
            yield split, questions, answers

    answer = write_boards(
        options, groups(), vocab_size=VOCABULARY, trains=trains, tests=tests, copies=SYMMETRIES if options.aug else 1
    )
    return answer | {"left_out": left_out, "longer_paths": longer}


def _from_table(options: MazeOptions, source: str) -> tuple[Iterator[tuple[Split, Maze, Maze]], int, int, int]:
    """Returns the chosen mazes of a table, each with its split, the numbers to train on and to test on, and how many
    are left out."""
    table = find_table(source)
    marks = {
        split: np.array([mark(question) for question, _ in _mazes(table, split, options.size)], np.uint64)
        for split in table
    }
    random = np.random.default_rng([options.seed, _CHOICE])
    choice = choose(table, marks, train_size=options.subsample_size, test_size=options.test_size, random=random)
    uses: tuple[tuple[Split, str, np.ndarray], ...] = (
        ("test", choice.test_split, choice.to_test),
        ("train", "train", choice.to_train),
    )
    mazes: Iterator[tuple[Split, Maze, Maze]] = (
        (split, *maze)
        for split, source_split, which in uses
        for maze, wanted in zip(_mazes(table, source_split, options.size), which, strict=True)
        if wanted
    )
    return mazes, int(choice.to_train.sum()), int(choice.to_test.sum()), choice.left_out


def _new_mazes(options: MazeOptions) -> Iterator[tuple[Maze, Maze]]:
    """Yields mazes without end, no two of which are symmetries of each other."""
    random = np.random.default_rng([options.seed, _MAZES])
    seen: set[int] = set()
    while True:
        for _ in range(TRIES):
            pair = new_maze(options.size, shortest=options.shortest, random=random)
            if pair is not None and (known := mark(pair[0])) not in seen:
                seen.add(known)
                yield pair
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


def _mazes(table: Table, split: str, size: int) -> Iterator[tuple[Maze, Maze]]:
    """Yields mazes and paths of all rows, each checked."""
    codes = {character: token for token, character in enumerate(CHARACTERS, 1)}
    written = f"a maze is written with {CHARACTERS!r} (wall, free, start, goal, path)"
    maze_of = partial(cells, codes=codes, side=size, sides=range(5, 1000), written=written)
    for row in rows_of(table[split]):
        flat = np.frombuffer(maze_of(row, "question") + maze_of(row, "answer"), np.uint8)
        question, answer = flat.reshape(2, size, size)
        if wrong := fault(question, answer):
            raise DataError(f"{row.place}: {wrong}. Leave the row out, or mend it")
        yield question, answer
