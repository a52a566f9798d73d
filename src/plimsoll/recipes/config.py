"""Recipes in TOML files: `plimsoll config RECIPE` prints one, `--config FILE` and the file's name in place of a
recipe's read one.

A file has one table of the form of presets.toml: the parts of the recipe, or a preset that it is `like`, and options
with their values. Nothing in it is run.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.recipes.family import Preset
from plimsoll.recipes.flat import chosen, overridden
from plimsoll.recipes.recipe import FROM_FILE, Recipe
from plimsoll.recipes.registry import of_parts, preset
from plimsoll.recipes.saved import to_dict


def read_config(file: str, base: str | None = None) -> Recipe:
    """Returns the recipe in a TOML file.

    Args:
        file: Path of the file.
        base: Name of the recipe whose options the file changes, where the file names none.

    Raises:
        RecipeError: The file cannot be read, names no recipe or another one than `base`, or has an option that the
            recipe refuses.
    """
    table = _table_in(file)
    like, parts = table.pop("like", base), table.pop("parts", None)
    options = {name: None if value == "None" else value for name, value in table.items() if name not in Preset._fields}
    if base is not None and (like != base or parts is not None):
        raise RecipeError(f"{base} and --config {file} each name a recipe: leave {base} out, or `like` and `parts`")
    try:
        if parts is not None:
            return of_parts(parts, options)
        if like is not None:
            return overridden(preset(like), options)
    except RecipeError as problem:
        raise RecipeError(f"{file}: {problem}") from None
    raise RecipeError(
        f'{file} names no recipe: add `like = "stories"`, or its `parts` as `plimsoll config stories` prints them'
    )


def _table_in(file: str) -> dict[str, Any]:
    """Returns the one table of a TOML file."""
    try:
        tables = tomllib.loads(Path(file).expanduser().read_text("utf-8"))
    except OSError as problem:
        raise RecipeError(
            f"--config {file} cannot be read: {problem.strerror}. `plimsoll config stories > recipe.toml` writes one"
        ) from None
    except ValueError as problem:
        raise RecipeError(f"{file} is not TOML: {problem}") from None
    values = [*tables.values()]
    if len(values) != 1 or not isinstance(values[0], dict):
        raise RecipeError(
            f"{file} must have one table, like [mine], with the options below it: it has"
            f" {', '.join(map(str, tables)) or 'nothing'}"
        )
    return values[0]


def written(recipe: Recipe, name: str) -> str:
    """Returns the TOML of a recipe: its parts, the options that were set, and the others as comments.

    Raises:
        RecipeError: The recipe is of functions in a Python file.
    """
    saved = to_dict(recipe)
    if saved["kind"] == FROM_FILE:
        raise RecipeError(f"{name} is a recipe in Python, which no TOML file can hold: give the .py file itself")
    parts = ", ".join(f"{role} = {_toml(part)}" for role, part in saved["parts"].items())
    key = name if re.fullmatch(r"[\w-]+", name, re.ASCII) else _toml(name)
    lines = [f"[{key}]", f"parts = {{ {parts} }}"]
    was_set = chosen(recipe)
    lines += [f"{option} = {_toml(value)}" for option, value in was_set.items()]
    lines += ["", "# The other options, at their defaults."]
    others: Mapping[str, Any] = {option: value for option, value in recipe.options.items() if option not in was_set}
    lines += [f"# {option} = {_toml(value)}" for option, value in others.items()]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """Returns a value in TOML, which has no null: presets write "None"."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps("None" if value is None else value, ensure_ascii=False)
