"""Recipes as TOML files for `--config FILE`: one table each, in the form of recipes/presets.toml."""

import json
import re
from collections.abc import Mapping
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.recipes.flat import chosen
from plimsoll.recipes.recipe import FROM_FILE, Recipe
from plimsoll.recipes.saved import to_dict


def to_toml(recipe: Recipe, name: str) -> str:
    """Returns a recipe as TOML: its parts, the options that differ from their defaults, and the others as comments.

    Raises:
        RecipeError: The recipe is made of Python functions.
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
    """Returns a value in TOML. TOML has no null, so None is the text "None"."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps("None" if value is None else value, ensure_ascii=False)
