"""ARC tasks in their published forms: the Kaggle form, or a JSON file per task. Every grid is checked.

Kaggle: `PREFIX_SUBSET_challenges.json` maps names to tasks, and `PREFIX_SUBSET_solutions.json` names to the outputs of
their test pairs. Otherwise there is a folder per subset, or one folder of tasks. A task is `{"train": pairs, "test":
pairs}`, a pair `{"input": rows, "output": rows}`, a row a list of colours from 0 to 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data import read_json
from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.arc_grids import CANVAS, COLOURS, Grid

CHALLENGES, SOLUTIONS = "_challenges", "_solutions"


@dataclass(frozen=True)
class Task:
    name: str
    train: list[tuple[Grid, Grid]]
    test: list[tuple[Grid, Grid | None]]
    """Test pairs; an output that was not published is None."""
    as_published: dict[str, Any]


def find_subsets(source: Path) -> dict[str, list[Path]]:
    """Returns the files of each subset: one of the Kaggle form, or one per task."""
    if not source.is_dir():
        raise DataError(f"--source {source} is no folder that is there: name one with ARC tasks in JSON files")
    kaggle = {
        path.stem.removesuffix(CHALLENGES).rsplit("_", 1)[-1]: [path]
        for path in sorted(source.glob(f"*{CHALLENGES}.json"))
    }
    if kaggle:
        return kaggle
    folders = {path.name: sorted(path.glob("*.json")) for path in sorted(source.iterdir()) if path.is_dir()}
    subsets = {name: files for name, files in folders.items() if files} or {source.name: sorted(source.glob("*.json"))}
    if not any(subsets.values()):
        raise DataError(
            f"--source {source} has no ARC tasks: NAME_challenges.json files, folders of JSON files, or JSON files"
            " were expected"
        )
    return subsets


def tasks(files: list[Path]) -> Iterator[Task]:
    """Yields the tasks of a subset, in order."""
    for path in files:
        content = read_json(path, absent=f"{path} is gone", again="Mend it, or leave it out")
        if path.stem.endswith(CHALLENGES):
            solutions_path = path.with_name(path.name.replace(CHALLENGES, SOLUTIONS))
            solutions = {}
            if solutions_path.is_file():
                solutions = read_json(solutions_path, absent=f"{solutions_path} is gone", again="Mend it, or remove it")
            if not isinstance(solutions, dict):
                raise DataError(f"{solutions_path} is no object with the outputs of each task under its name")
            if not isinstance(content, dict) or not content:
                raise DataError(f"{path} is no object with a task under each name, as the Kaggle form has them")
            for name, task in content.items():
                yield _task(name, _solved(task, solutions.get(name), f"{path}, task {name}"), f"{path}, task {name}")
        else:
            yield _task(path.stem, content, str(path))


def _solved(task: Any, outputs: Any, place: str) -> Any:
    """Returns the task with the outputs of its test pairs, if they are published."""
    if outputs is None or not isinstance(task, dict):
        return task
    pairs = task.get("test", [])
    if not isinstance(outputs, list) or len(outputs) != len(pairs):
        count = len(outputs) if isinstance(outputs, list) else 0
        raise DataError(f"{place} has {len(pairs)} test pairs, and {count} solutions in the file beside it")
    return task | {"test": [pair | {"output": grid} for pair, grid in zip(pairs, outputs, strict=True)]}


def _task(name: str, content: Any, place: str) -> Task:
    parts: dict[str, Any] = {
        part: content.get(part) if isinstance(content, dict) else None for part in ("train", "test")
    }
    if not all(isinstance(part, list) and part for part in parts.values()):
        raise DataError(f"{place} is no ARC task: it needs lists train and test of pairs, neither of them empty")
    pairs: dict[str, list[tuple[Grid, Grid | None]]] = {"train": [], "test": []}
    for part, listed in parts.items():
        for number, pair in enumerate(listed, 1):
            pair_place = f"{place}, {part} pair {number}"
            if not isinstance(pair, dict) or "input" not in pair:
                raise DataError(f"{pair_place} has no input")
            output = pair.get("output")
            answer = None if output is None else _grid(output, f"{pair_place}, output")
            pairs[part].append((_grid(pair["input"], f"{pair_place}, input"), answer))
    train = [(question, answer) for question, answer in pairs["train"] if answer is not None]
    if len(train) < len(pairs["train"]):
        raise DataError(f"{place}: a train pair has no output, and those are what a task is learned from")
    return Task(name, train, pairs["test"], parts)


def _grid(rows: Any, place: str) -> Grid:
    lists = isinstance(rows, list) and all(isinstance(row, list) for row in rows)
    if not lists or not rows or not rows[0] or len({len(row) for row in rows}) != 1:
        raise DataError(f"{place} is no grid: rows of one length, with at least one cell, were expected")
    if len(rows) > CANVAS or len(rows[0]) > CANVAS:
        raise DataError(
            f"{place} has {len(rows)}x{len(rows[0])} cells, and an ARC grid has at most {CANVAS}x{CANVAS}: leave the"
            " task out"
        )
    for number, row in enumerate(rows, 1):
        for colour in row:
            if type(colour) is not int or not 0 <= colour < COLOURS:
                raise DataError(f"{place}, row {number} has the cell {colour!r}: colours are 0 to {COLOURS - 1}")
    return np.array(rows, np.uint8)
