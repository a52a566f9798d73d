"""Reads ARC tasks in Kaggle's form, or from one JSON file per task, and checks every grid.

Kaggle: `PREFIX_SUBSET_challenges.json` maps names to tasks, and `PREFIX_SUBSET_solutions.json` maps names to the
outputs of the test pairs. Otherwise there is a folder per subset, or one folder of tasks. A task is `{"train": pairs,
"test": pairs}`, a pair `{"input": rows, "output": rows}`, a row a list of colours from 0 to 9.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data import in_short, read_json
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

    @property
    def known(self) -> list[tuple[Grid, Grid]]:
        """Test pairs whose output was published."""
        return [(question, answer) for question, answer in self.test if answer is not None]


def find_subsets(source: Path) -> dict[str, list[Path]]:
    """Returns the JSON files of each subset: one in Kaggle's form, else one per task."""
    kaggle = sorted(source.glob(f"*{CHALLENGES}.json"))
    subsets = {path.stem.removesuffix(CHALLENGES).rsplit("_", 1)[-1]: [path] for path in kaggle}
    if not kaggle:
        folders = [source, *sorted(path for path in source.glob("*") if path.is_dir())]
        subsets = {folder.name: sorted(folder.glob("*.json")) for folder in folders}
    subsets = {name: files for name, files in subsets.items() if files}
    if not subsets:
        raise DataError(
            f"--source {source} is no folder with ARC tasks: NAME_challenges.json files, folders of JSON files, or JSON"
            " files were expected"
        )
    return subsets


def read_tasks(files: list[Path]) -> list[Task]:
    """Returns the tasks of a subset, in order."""
    tasks = []
    for path in files:
        content = _object(path)
        if not path.stem.endswith(CHALLENGES):
            tasks.append(_task(path.stem, content, None, str(path)))
            continue
        solutions_path = path.with_name(path.name.replace(CHALLENGES, SOLUTIONS))
        solutions = _object(solutions_path) if solutions_path.is_file() else {}
        for name, task in content.items():
            tasks.append(_task(name, task, solutions.get(name), f"{path}, task {name}"))
    return tasks


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path, absent=f"{path} is gone", again="Mend it, or leave it out")
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} is no JSON object with an ARC task, or with one under each name. Leave it out")
    return content


def _task(name: str, content: Any, outputs: list | None, place: str) -> Task:
    """Returns a task. `outputs` are its test pairs' outputs if another file has them; `place` is for error messages."""
    try:
        tests = content["test"]
        if outputs is not None:
            tests = [pair | {"output": output} for pair, output in zip(tests, outputs, strict=True)]
        train = [(_grid(pair["input"]), _grid(pair["output"])) for pair in content["train"]]
        test = []
        for pair in tests:
            output = pair.get("output")
            test.append((_grid(pair["input"]), None if output is None else _grid(output)))
        if not train or not test:
            raise ValueError("no pairs")
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise DataError(
            f"{place} is no ARC task ({in_short(problem, kind=True)}): it needs lists train and test of pairs of input"
            f" and output, which are rows of one length, at most {CANVAS}x{CANVAS}, of colours from 0 to {COLOURS - 1}."
            " Mend it, or leave it out"
        ) from None
    return Task(name, train, test, {"train": content["train"], "test": tests})


def _grid(rows: Any) -> Grid:
    grid = np.array(rows)
    is_grid = grid.ndim == 2 and grid.dtype.kind == "i" and grid.size and max(grid.shape) <= CANVAS
    if not is_grid or grid.min() < 0 or grid.max() >= COLOURS:
        raise ValueError(f"a grid of shape {grid.shape}, {grid.dtype}, {str(rows)[:60]}")
    return grid.astype(np.uint8)
