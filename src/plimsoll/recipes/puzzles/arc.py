"""`plimsoll prepare arc`: ARC tasks with augmentations, in the data format of Tiny Recursive Models.

The train split has the demonstration pairs of every task: from them the model learns the embedding of each task's
identifier, even in the test subset. The test split has the test pairs of the test subset; other test pairs are trained
on. Format and augmentation: build_arc_dataset.py of Tiny Recursive Models, https://arxiv.org/abs/2510.04871.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.arc_grids import (
    CANVAS,
    NOTHING,
    VOCABULARY,
    Augmentation,
    Grid,
    key_of,
    placed,
    random_augmentation,
)
from plimsoll.recipes.puzzles.arc_tasks import Task, find_subsets, read_tasks
from plimsoll.recipes.puzzles.prepare_options import ArcOptions
from plimsoll.recipes.puzzles.writer import BLANK, Group, Split, write_puzzles

TRIES = 5
"""Maximum number of random draws per requested augmentation: a task with few colours or much symmetry has few
different ones."""
UNKNOWN = np.zeros((1, 1), np.uint8)
"""Grid that replaces an unpublished answer of a test pair, as in build_arc_dataset.py."""
_TASK = 41
"""Constant in the seed of each task's random generator, beside --seed and the task's index."""


def make(options: ArcOptions) -> dict[str, Any]:
    """Writes the data set of `plimsoll prepare arc`; progress goes to standard error."""
    chosen, test_set = _read(options)
    tested = {task.name: task.as_published for task in chosen[test_set]}
    tasks = [task for of_subset in chosen.values() for task in of_subset]
    [(repeated, count)] = Counter(task.name for task in tasks).most_common(1)
    if count > 1:
        raise DataError(
            f"{options.source} has {count} tasks {repeated}: a name must belong to one task. Choose one of them"
            " with --subsets"
        )

    # `_groups` appends to this list while `write_puzzles` reads the groups.
    identifiers = [BLANK]
    sizes = write_puzzles(
        options,
        _groups(options, tasks, tested, identifiers),
        count=len(tasks) + len(tested),
        seq_len=CANVAS**2,
        vocab_size=VOCABULARY,
        names=identifiers,
        more={"test_puzzles.json": tested},
    )
    return sizes | {"tasks": len(tasks), "test_tasks": len(tested), "test_set": test_set}


def _read(options: ArcOptions) -> tuple[dict[str, list[Task]], str]:
    """Returns the checked tasks of each chosen subset, and the name of the test subset."""
    source = Path(options.source).expanduser()
    subsets = find_subsets(source)
    names = options.subsets or tuple(subsets)
    usual = [name for name in (*names, "evaluation", "evaluation2") if name in names]
    test_set = options.test_set_name or usual[-1]
    if not {*names} <= subsets.keys() or test_set not in names:
        raise DataError(
            f"{source} has the subsets {', '.join(subsets)}, and --subsets {' '.join(names)} --test-set-name {test_set}"
            " ask for others"
        )
    return {name: read_tasks(subsets[name]) for name in names}, test_set


def _groups(options: ArcOptions, tasks: list[Task], tested: Collection[str], identifiers: list[str]) -> Iterator[Group]:
    """Yields each task's groups of puzzles for both splits, and appends the puzzles' names to `identifiers`."""
    for number, task in enumerate(tasks):
        random = np.random.default_rng([options.seed, _TASK, number])
        augmentations = unique_augmentations(task, options.num_aug, random)
        numbers = np.arange(len(identifiers), len(identifiers) + len(augmentations), dtype=np.int32)
        identifiers.extend([task.name, *(augmentation.named(task.name) for augmentation in augmentations[1:])])
        if task.name not in tested:
            yield _group("train", task.train + task.known, augmentations, numbers, random)
            continue
        yield _group("train", task.train, augmentations, numbers, random)
        questions = [(question, UNKNOWN if answer is None else answer) for question, answer in task.test]
        yield _group("test", questions, augmentations, numbers, None)


def unique_augmentations(task: Task, count: int, random: np.random.Generator) -> list[Augmentation]:
    """Returns the task unchanged, then up to `count` augmentations, no two of which have the same grids."""
    augmentations = [NOTHING]
    seen = {_mark(task, NOTHING)}
    for _ in range(TRIES * count):
        if len(augmentations) > count:
            break
        augmentation = random_augmentation(random)
        mark = _mark(task, augmentation)
        if mark not in seen:
            seen.add(mark)
            augmentations.append(augmentation)
    return augmentations


def _mark(task: Task, by: Augmentation) -> tuple[bytes, ...]:
    """Returns the augmented pairs as sorted bytes, which are equal for augmentations with the same grids."""
    pairs = task.train + task.known
    return tuple(sorted(key_of(by.applied(question)) + key_of(by.applied(answer)) for question, answer in pairs))


def _group(
    split: Split,
    pairs: list[tuple[Grid, Grid]],
    augmentations: list[Augmentation],
    identifiers: np.ndarray,
    random: np.random.Generator | None,
) -> Group:
    """Returns a task's group of puzzles, one per augmentation.

    With `random`, all pairs of a puzzle but one are at random places of the canvas. That one, or without `random`
    every pair, is at the upper left corner.
    """
    inputs = []
    labels = []
    for augmentation in augmentations:
        still = -1 if random is None else int(random.integers(len(pairs)))
        for number, (question, answer) in enumerate(pairs):
            grids = augmentation.applied(question), augmentation.applied(answer)
            corner = [0, 0]
            if random is not None and number != still:
                extent = np.max([grid.shape for grid in grids], axis=0)
                corner = [int(random.integers(CANVAS - size + 1)) for size in extent]
            inputs.append(placed(grids[0], *corner))
            labels.append(placed(grids[1], *corner))
    sizes = np.full(len(identifiers), len(pairs), np.int32)
    return Group(split, np.stack(inputs), np.stack(labels), sizes, identifiers)
