"""The commands that continue a run, repeat it, and use it, from what its folder says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.own.pickled import is_pickled
from plimsoll.recipes.registry import preset, presets
from plimsoll.recipes.saved import chosen_fields as fields_besides
from plimsoll.recipes.saved import is_from_file
from plimsoll.recipes.verbs import Shown
from plimsoll.units import MIB


def chosen_fields(saved: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Returns the fields that are not as in the preset; of a user's file all of them."""
    return fields_besides(saved, None if is_from_file(saved) else preset(_preset_of(saved["kind"], name)))


def _preset_of(kind: str, name: str | None) -> str:
    """Returns the preset of that name, or the first of the kind: a run from Python may be called anything."""
    names = presets()
    if name in names and preset(name).kind == kind:
        return name
    of_kind = [other for other in names if preset(other).kind == kind]
    if not of_kind:
        raise RecipeError(f"no preset is of the kind {kind}: the command that made this run is not known")
    return of_kind[0]


def recipe_words(saved: Mapping[str, Any], name: str | None) -> list[str]:
    """Returns what follows `plimsoll train`: the recipe, and the options that make it this one."""
    words = [f"{saved['file']}:{saved['name']}" if is_from_file(saved) else _preset_of(saved["kind"], name)]
    for field, value in chosen_fields(saved, name).items():
        flag = field.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def continue_command(folder: RunFolder, saved: Mapping[str, Any], planned: Mapping[str, Any]) -> str | None:
    """Returns the command that continues a run; None where functions of a Python program are needed for it.

    The run keeps its plan, so options of the plan are not needed.
    """
    if is_pickled(saved):
        return None
    words = recipe_words(saved, planned.get("recipe"))
    return shlex.join(["plimsoll", "train", *words, "--run", str(folder.path)])


def repeat_command(folder: RunFolder, saved: Mapping[str, Any], planned: Mapping[str, Any]) -> str | None:
    """Returns the command that trains the same recipe by the same plan from the start, in a folder of its own; None
    where functions of a Python program are needed for it."""
    if is_pickled(saved):
        return None
    budget, chip = planned["budget_bytes"], planned["plan"]["chip"]
    memory = f"{budget // MIB}MiB" if budget % MIB == 0 else str(budget)
    plan_file, run = str(folder.path / "plan.json"), f"{folder.path}-again"
    again = ["--memory", memory, "--chip", chip, "--plan", plan_file, "--run", run]
    return shlex.join(["plimsoll", "train", *recipe_words(saved, planned.get("recipe")), *again])


def use_commands(folder: RunFolder, shown: Sequence[Shown]) -> list[str]:
    """Returns the commands that use a run: `evaluate`, and those of what its recipe shows."""
    run = shlex.quote(str(folder.path))
    return [f"plimsoll evaluate {run}", *(part.command.format(run=run) for part in shown if part.command)]
