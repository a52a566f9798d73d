"""`plimsoll prepare arc`: tasks with their augmentations, in the published format.

The demonstration pairs of every task are trained on, those of the test subset too: from them the model learns what
belongs to a task's identifier. The test pairs of the test subset are tested on, those of other subsets trained on.
Format and augmentation: build_arc_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.arc_grids import (
    CANVAS,
    NOTHING,
    VOCABULARY,
    Augmentation,
    Grid,
    placed,
    random_augmentation,
)
from plimsoll.recipes.puzzles.arc_tasks import Task, find_subsets, tasks
from plimsoll.recipes.puzzles.prepare_options import ArcOptions
from plimsoll.recipes.puzzles.vote_counts import key_of
from plimsoll.recipes.puzzles.writer import FIXED_BYTES, PuzzleFolder, SplitFiles, write_puzzles

TRIES = 5
"""Random draws per requested augmentation: a task with few colours and much symmetry has fewer different ones."""
TEST_SETS = ("evaluation2", "evaluation")
NAME_BYTES = 80
"""Bytes of the name of an augmentation, at most."""
_TASK = 41
"""Number of the random stream that a seed has for each task."""

Pair = tuple[Grid, Grid]


def make(options: ArcOptions) -> dict[str, Any]:
    """Makes the folder of `plimsoll prepare arc`; progress goes to standard error."""
    source, progress = Path(options.source).expanduser(), Spoken("tasks")
    subsets = find_subsets(source)
    if missing := [name for name in options.subsets if name not in subsets]:
        raise DataError(f"{source} has the subsets {', '.join(subsets)}, and --subsets asks for {', '.join(missing)}")
    subsets = {name: subsets[name] for name in options.subsets or subsets}
    test_set = _test_set(options.test_set_name, subsets)
    names: dict[str, str] = {}
    pairs = 0
    for subset, files in subsets.items():  # all of it is read, and so checked, before the first row is written
        for task in tasks(files):
            if task.name in names:
                raise DataError(
                    f"task {task.name} is in {names[task.name]} and in {subset} of {source}: its identifier must say"
                    " which is meant. Choose with --subsets"
                )
            names[task.name], pairs = subset, pairs + len(task.train) + len(task.test)
    needed = (1 + options.num_aug) * (pairs * 2 * CANVAS**2 + len(names) * NAME_BYTES) + FIXED_BYTES
    few = unknown = 0
    tests: dict[str, Any] = {}

    def fill(folder: PuzzleFolder) -> None:
        nonlocal few, unknown
        for number, task in enumerate(task for files in subsets.values() for task in tasks(files)):
            random = np.random.default_rng([options.seed, _TASK, number])
            augmentations = unique(task, options.num_aug, random)
            to_test = names[task.name] == test_set
            _add(folder, task, augmentations, to_test=to_test, random=random)
            if to_test:
                tests[task.name] = task.as_published
            few += len(augmentations) <= options.num_aug
            unknown += sum(output is None for _, output in task.test)
            progress(number + 1, len(names))
        (folder.partial / "test_puzzles.json").write_text(json.dumps(tests), "utf-8")

    answer = write_puzzles(options, fill, seq_len=CANVAS**2, vocab_size=VOCABULARY, needed_bytes=needed)
    return answer | {
        "tasks": len(names),
        "test_tasks": len(tests),
        "test_set": test_set,
        "tasks_with_fewer_augmentations": few,
        "test_pairs_without_solution": unknown,
    }


def _test_set(name: str | None, subsets: Mapping[str, Any]) -> str:
    """Returns the subset whose test pairs are tested on: the one that was named, or a usual one, or the only one."""
    wanted = (name,) if name else (*TEST_SETS, *(subsets if len(subsets) == 1 else ()))
    for candidate in wanted:
        if candidate in subsets:
            return candidate
    raise DataError(
        f"none of the subsets {', '.join(subsets)} is {' or '.join(wanted)}: --test-set-name says whose test pairs are"
        " to test on"
    )


def unique(task: Task, count: int, random: np.random.Generator) -> list[Augmentation]:
    """Returns the task unchanged, then up to `count` augmentations, no two of which have the same grids."""
    augmentations, seen = [NOTHING], {_mark(task, NOTHING)}
    for _ in range(TRIES * count):
        if len(augmentations) > count:
            break
        augmentation = random_augmentation(random)
        if (mark := _mark(task, augmentation)) not in seen:
            seen.add(mark)
            augmentations.append(augmentation)
    return augmentations


def _mark(task: Task, by: Augmentation) -> bytes:
    """Returns the pairs of an augmentation, in any order, as a key that distinguishes it from others of its task."""
    grids = [(question, answer) for question, answer in (*task.train, *task.test) if answer is not None]
    keys = sorted(key_of(by.applied(question)) + key_of(by.applied(answer)) for question, answer in grids)
    return hashlib.sha256(b"|".join(keys)).digest()


def _add(
    folder: PuzzleFolder, task: Task, augmentations: list[Augmentation], *, to_test: bool, random: np.random.Generator
) -> None:
    named = [task.name, *(augmentation.named(task.name) for augmentation in augmentations[1:])]
    identifiers = np.array([folder.name(name) for name in named], np.int32)
    known = [(question, answer) for question, answer in task.test if answer is not None]
    learned = task.train if to_test else task.train + known
    _add_group(folder.splits["train"], learned, augmentations, identifiers, random=random)
    if to_test:
        nothing = np.zeros((1, 1), np.uint8)  # as the published builder has it, where nobody knows the answer
        questions = [(grid, nothing if answer is None else answer) for grid, answer in task.test]
        _add_group(folder.splits["test"], questions, augmentations, identifiers, random=None)


def _add_group(
    split: SplitFiles,
    pairs: list[Pair],
    augmentations: Iterable[Augmentation],
    identifiers: np.ndarray,
    *,
    random: np.random.Generator | None,
) -> None:
    """Adds the puzzles of a task.

    With `random`, all pairs of a puzzle but one are put at random places of the canvas; else all are at its corner.
    """
    inputs, labels = [], []
    for by in augmentations:
        still = -1 if random is None else int(random.integers(len(pairs)))
        for number, (question, answer) in enumerate(pairs):
            grids = by.applied(question), by.applied(answer)
            row = col = 0
            if random is not None and number != still:
                largest = [max(grid.shape[axis] for grid in grids) for axis in (0, 1)]
                row, col = (int(random.integers(CANVAS - size + 1)) for size in largest)
            inputs.append(placed(grids[0], row, col))
            labels.append(placed(grids[1], row, col))
    sizes = np.full(len(identifiers), len(pairs), np.int32)
    split.add_group(np.stack(inputs), np.stack(labels), sizes=sizes, identifiers=identifiers)
