"""The commands that continue a run, repeat it, and use it, from what its folder says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Planned
from plimsoll.recipes.own.pickled import is_pickled
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registered import presets
from plimsoll.recipes.registry import preset, swapped
from plimsoll.recipes.saved import chosen_fields, is_from_file
from plimsoll.recipes.verbs import Shown
from plimsoll.units import MIB


def base_of(saved: Mapping[str, Any], name: str | None) -> tuple[list[str], Recipe | None]:
    """Returns the words that name a recipe, and the recipe with the options that it has by these words.

    Args:
        saved: Content of recipe.json.
        name: Name of the preset, if it was one: a run from Python may be called anything.

    Raises:
        RecipeError: No preset has the model of this recipe.
    """
    if is_from_file(saved):
        return [f"{saved['file']}:{saved['name']}"], None

    # Presets with this model (or this one class that has all), and the parts that each has otherwise.
    parts = saved["parts"]
    main = "model" if "model" in parts else "recipe"
    swaps = {
        other: {role: part for role, part in parts.items() if record.parts[role] != part}
        for other, record in presets().items()
        if record.parts.get(main) == parts[main]
    }
    if not swaps:
        raise RecipeError(f"no preset is of the kind {saved['kind']}: the command that made this run is not known")

    # The one of that name, or the closest.
    closest = name if name in swaps else min(swaps, key=lambda other: len(swaps[other]))
    swap = swaps[closest]
    if not swap:
        return [closest], preset(closest)
    words = ",".join(f"{role}={part}" for role, part in swap.items())
    return [closest, "--swap", words], swapped(preset(closest), swap)


def recipe_words(saved: Mapping[str, Any], name: str | None) -> list[str]:
    """Returns what follows `plimsoll train`: the recipe, and the options that make it this one."""
    words, base = base_of(saved, name)
    for field, value in chosen_fields(saved, base).items():
        flag = field.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def continue_command(folder: RunFolder, saved: Mapping[str, Any]) -> str | None:
    """Returns the command that continues a run; None where functions of a Python program are needed for it."""
    return None if is_pickled(saved) else shlex.join(["plimsoll", "resume", str(folder.path)])


def repeat_command(folder: RunFolder, saved: Mapping[str, Any], planned: Planned) -> str | None:
    """Returns the command that trains the same recipe by the same plan from the start, in a folder of its own; None
    where functions of a Python program are needed for it."""
    if is_pickled(saved):
        return None
    budget = planned.ledger.budget_bytes
    memory = f"{budget // MIB}MiB" if budget % MIB == 0 else str(budget)
    plan_file, run = str(folder.path / "plan.json"), f"{folder.path}-again"
    again = ["--memory", memory, "--chip", planned.plan.chip, "--plan", plan_file, "--run", run]
    return shlex.join(["plimsoll", "train", *recipe_words(saved, planned.recipe), *again])


def use_commands(folder: RunFolder, shown: Sequence[Shown]) -> list[str]:
    """Returns the commands that use a run: `evaluate`, and those of what its recipe shows."""
    run = shlex.quote(str(folder.path))
    return [f"plimsoll evaluate {run}", *(part.command.format(run=run) for part in shown if part.command)]
