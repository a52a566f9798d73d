"""Commands that continue a run, repeat it and use it, from what its folder records."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.recipes.base import FROM_FILE, Recipe
from plimsoll.recipes.registry import PRESETS, preset
from plimsoll.recipes.saved import from_dict, to_dict
from plimsoll.runs.folder import RunFolder
from plimsoll.units import MIB

USES = {
    "sample": "plimsoll sample {run}",
    "solve": "plimsoll solve {run} test:0",
    "drive": "plimsoll evaluate {run} --closed-loop",
}
"""Command for each thing that a recipe shows (`Recipe.shown`)."""


def chosen_fields(saved: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Returns the fields that differ from the preset.

    A recipe from a user's file gives all of its fields, since its defaults are known only by running the file.

    Args:
        saved: The run's recipe.json.
        name: Name of the preset, if the run was started from one.
    """
    if saved.get("kind") == FROM_FILE:
        return dict(saved.get("fields", {}))
    recipe = from_dict(saved)
    base = to_dict(preset(_preset_of(recipe, name)))["fields"]
    return {field: value for field, value in to_dict(recipe)["fields"].items() if value != base[field]}


def _preset_of(recipe: Recipe, name: str | None) -> str:
    """Returns `name` if it is a preset of the recipe's kind, else the first such preset: Python may use any name."""
    if name in PRESETS and preset(name).kind == recipe.kind:
        return name
    return next(other for other in PRESETS if preset(other).kind == recipe.kind)


def recipe_words(saved: Mapping[str, Any], name: str | None) -> list[str]:
    """Returns the words after `plimsoll train` that make this recipe: its name, and the options for its fields."""
    from_file = saved.get("kind") == FROM_FILE
    words = [f"{saved['file']}:{saved['name']}" if from_file else _preset_of(from_dict(saved), name)]
    for field, value in chosen_fields(saved, name).items():
        flag = field.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def continue_command(folder: RunFolder, saved: Mapping[str, Any], planned: Mapping[str, Any]) -> str:
    """Returns the command that continues a run. The run keeps its plan, so options of the plan are not needed."""
    words = recipe_words(saved, planned.get("recipe"))
    return shlex.join(["plimsoll", "train", *words, "--run", str(folder.path)])


def repeat_command(folder: RunFolder, saved: Mapping[str, Any], planned: Mapping[str, Any]) -> str:
    """Returns the command that trains the same recipe by the same plan from the start, in a folder of its own."""
    budget, chip = planned["budget_bytes"], planned["plan"]["chip"]
    memory = f"{budget // MIB}MiB" if budget % MIB == 0 else str(budget)
    target = [] if chip == "cpu" else ["--chip", chip]
    again = ["--memory", memory, *target, "--plan", str(folder.path / "plan.json"), "--run", f"{folder.path}-again"]
    return shlex.join(["plimsoll", "train", *recipe_words(saved, planned.get("recipe")), *again])


def use_commands(folder: RunFolder, shown: Sequence[str]) -> list[str]:
    """Returns the commands that evaluate a run, and that show each of `shown` (`Recipe.shown`)."""
    run = shlex.quote(str(folder.path))
    return [f"plimsoll evaluate {run}", *(USES[name].format(run=run) for name in shown if name in USES)]
