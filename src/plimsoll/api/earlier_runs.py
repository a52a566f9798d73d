"""Finished runs of a recipe on the same data, in sizes and lengths of their own: what corrects the loss that
`--best-size` predicts. Only files of the runs are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from plimsoll.api.loss_law import Observed, effective_tokens
from plimsoll.errors import PlimsollError, as_written
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.saved import differences, from_dict
from plimsoll.report.metrics import read_rows
from plimsoll.runs.folder import RunFolder


def earlier_runs(place: Path, recipe: Recipe) -> list[Observed]:
    """Returns the finished runs below a folder whose losses can be compared with those of a recipe.

    They differ from it in no option but size, length and seed, and their data is what it was. A run that cannot be read
    is left out, and so is one that was extended: its learning rates are not those of its length.

    Args:
        place: Folder, which need not exist.
        recipe: The recipe, of any size.
    """
    found: list[Observed] = []
    for path, below, files in os.walk(place):
        if "recipe.json" in files:
            below.clear()  # runs are not looked for inside runs
            try:
                with as_written(f"a file of {path}"):
                    run = _observed(RunFolder(path), recipe)
            except PlimsollError:
                run = None
            found += [] if run is None else [run]
        below.sort()
    return found


def _observed(folder: RunFolder, recipe: Recipe) -> Observed | None:
    """Returns what the law needs of a run; None if it is not finished, or cannot be compared."""
    run, prepared = from_dict(folder.read("recipe.json")), Prepared(**folder.read("data.json"))
    steps = prepared.steps
    if not _comparable(run, recipe) or max(folder.saved_steps(), default=0) < steps or "extended" in prepared.facts:
        return None
    run.training_data_changed(prepared)  # raises if it did
    rows: list[dict[str, Any]] = list(read_rows(folder.metrics))
    losses = [row["validation_loss"] for row in rows if row["step"] == steps and row.get("validation_loss") is not None]
    if not losses:
        return None
    of_a_step = run.effective_batch * run.rate_per_example
    unique = prepared.facts.get("tokens") or run.data_tokens
    return Observed(
        parameters=folder.read("plan.json")["parameters"],
        tokens=effective_tokens(steps * of_a_step, unique),
        loss=losses[-1],
        run=str(folder.path),
    )


def _comparable(run: Recipe, recipe: Recipe) -> bool:
    """Returns whether two recipes differ in nothing but size, length and seed."""
    free = {"target_params", *recipe.gives_way["target_params"], "steps", "epochs", "seed", *recipe.same_for_all_sizes}
    return differences(run, recipe).keys() <= free and run.same_for_all_sizes == recipe.same_for_all_sizes
