"""`plimsoll prepare maze`: mazes from CSV files, in the data format of Tiny Recursive Models.

Tokens 1 to 5 are the characters "# SGo" (wall, free, start, goal, path); 0 is padding, which no maze has. Format:
build_maze_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871. As in that script, the eight
symmetries of a maze are off by default, although the paper says 8 augmentations.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from plimsoll.recipes.puzzles.arc_grids import SYMMETRIES, dihedral
from plimsoll.recipes.puzzles.board_table import Boards, BoardTable, Marks, choose, fingerprints
from plimsoll.recipes.puzzles.maze_rules import CHARACTERS, fault
from plimsoll.recipes.puzzles.prepare_options import MazeOptions
from plimsoll.recipes.puzzles.writer import Group, group_of_boards, write_puzzles

_CHOICE = 31
"""Constant in the seed of the random generator that chooses mazes, beside --seed."""


def make(options: MazeOptions) -> dict[str, Any]:
    """Writes the data set of `plimsoll prepare maze`; progress goes to standard error."""
    codes = {character: token for token, character in enumerate(CHARACTERS, 1)}
    table = BoardTable(options.source, side=options.size, codes=codes, are_solved=_are_solved)
    random = np.random.default_rng([options.seed, _CHOICE])
    choice = choose(
        table,
        mark=lambda questions, _: marks(questions),
        train_size=options.subsample_size,
        test_size=options.test_size,
        random=random,
    )
    views = range(SYMMETRIES if options.aug else 1)

    def groups() -> Iterator[Group]:
        for question, answer in table.chosen(choice.test_split, choice.to_test):
            yield group_of_boards("test", question[None], answer[None])
        for question, answer in table.chosen("train", choice.to_train):
            questions = np.stack([dihedral(question, which) for which in views])
            answers = np.stack([dihedral(answer, which) for which in views])
            yield group_of_boards("train", questions, answers)

    return write_puzzles(options, groups(), count=choice.count, seq_len=options.size**2, vocab_size=1 + len(CHARACTERS))


def _are_solved(questions: Boards, answers: Boards) -> np.ndarray:
    pairs = zip(questions, answers, strict=True)
    return np.array([fault(question, answer) is None for question, answer in pairs], bool)


def marks(questions: Boards) -> Marks:
    """Returns a 64-bit hash per maze, equal for its eight symmetries."""
    return np.stack([fingerprints(dihedral(questions, which)) for which in range(SYMMETRIES)]).min(axis=0)
