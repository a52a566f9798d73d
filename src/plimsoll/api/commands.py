"""Builds the commands that continue, repeat and use a run, from the files in its folder."""

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
    """Returns the command-line words that name a run's recipe, and the recipe that these words alone give.

    The second value is None if the recipe is from a user's file.

    Args:
        saved: Content of recipe.json.
        name: Name of the run's recipe. A run from Python may have any name, not only a preset's.

    Raises:
        RecipeError: No preset has the model of this recipe.
    """
    if is_from_file(saved):
        return [f"{saved['file']}:{saved['name']}"], None

    # Find the presets with this model (or recipe class), and the parts in which each preset differs from the recipe.
    parts = saved["parts"]
    main = "model" if "model" in parts else "recipe"
    swaps = {
        other: {role: part for role, part in parts.items() if record.parts[role] != part}
        for other, record in presets().items()
        if record.parts.get(main) == parts[main]
    }
    if not swaps:
        raise RecipeError(f"no preset is of the kind {saved['kind']}: the command that made this run is not known")

    # Take the preset called `name`, or else the preset with the fewest different parts.
    closest = name if name in swaps else min(swaps, key=lambda other: len(swaps[other]))
    swap = swaps[closest]
    if not swap:
        return [closest], preset(closest)
    words = ",".join(f"{role}={part}" for role, part in swap.items())
    return [closest, "--swap", words], swapped(preset(closest), swap)


def recipe_words(saved: Mapping[str, Any], name: str | None) -> list[str]:
    """Returns the arguments of `plimsoll train`: the recipe, and its options that differ from the preset."""
    words, base = base_of(saved, name)
    for field, value in chosen_fields(saved, base).items():
        flag = field.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def continue_command(folder: RunFolder, saved: Mapping[str, Any]) -> str | None:
    """Returns the command that continues a run; None if its recipe needs functions of a Python program."""
    return None if is_pickled(saved) else shlex.join(["plimsoll", "resume", str(folder.path)])


def repeat_command(folder: RunFolder, saved: Mapping[str, Any], planned: Planned) -> str | None:
    """Returns the command that trains the same recipe with the same plan from the start, in a new folder.

    Returns None if the recipe needs functions of a Python program.
    """
    if is_pickled(saved):
        return None
    budget = planned.ledger.budget_bytes
    memory = f"{budget // MIB}MiB" if budget % MIB == 0 else str(budget)
    plan_file, run = str(folder.path / "plan.json"), f"{folder.path}-again"
    again = ["--memory", memory, "--chip", planned.plan.chip, "--plan", plan_file, "--run", run]
    return shlex.join(["plimsoll", "train", *recipe_words(saved, planned.recipe), *again])


def use_commands(folder: RunFolder, shown: Sequence[Shown]) -> list[str]:
    """Returns the commands that use a trained run: `evaluate`, and the commands that make the outputs in `shown`."""
    run = shlex.quote(str(folder.path))
    return [f"plimsoll evaluate {run}", *(part.command.format(run=run) for part in shown if part.command)]
