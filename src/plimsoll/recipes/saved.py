"""From a recipe to what `recipe.json` holds, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError, as_written
from plimsoll.recipes.base import FROM_FILE, Recipe
from plimsoll.recipes.own import files, pickled
from plimsoll.recipes.registry import KINDS, code_of, recipe_class

SAVED = "recipe.json of the run"


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Returns what `recipe.json` holds, and what the planner's answers are kept by.

    Raises:
        RecipeError: A field of a user's recipe is not a number, a string, a boolean or None.
    """
    fields = dataclasses.asdict(recipe)
    if recipe.kind != FROM_FILE:
        code = {} if recipe.kind in KINDS else {"code": code_of(type(recipe))}
        return {"kind": recipe.kind, "fields": fields, **code}
    for name, value in fields.items():
        if not isinstance(value, bool | int | float | str | None):
            raise RecipeError(
                f"the field {name} of {type(recipe).__name__} is a {type(value).__name__}: fields are options, and"
                " kept as JSON: numbers, strings, booleans or None"
            )
    return {"kind": recipe.kind, **files.describe(recipe), "fields": fields}


def name_of(recipe: Recipe) -> str:
    """Returns what to call a recipe that the user has not named: its kind, or the name of its file."""
    return recipe.kind if recipe.kind != FROM_FILE else name_in({"kind": FROM_FILE, **files.describe(recipe)})


def class_of(saved: Mapping[str, Any]) -> type[Recipe]:
    """Returns the class of a saved recipe. Of a file's it is `Recipe` itself: the file is run only where it is needed.

    Raises:
        RecipeError: It is of a kind that nobody has registered.
    """
    with as_written(SAVED):
        kind = saved["kind"]
    return Recipe if kind == FROM_FILE else recipe_class(kind)


def is_from_file(saved: Mapping[str, Any]) -> bool:
    """Returns whether a saved recipe stands in a user's file, which is run only where that is needed."""
    return class_of(saved).kind == FROM_FILE


def from_dict(saved: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that `to_dict` wrote.

    Raises:
        RecipeError: The kind or a field is unknown, or a user's file is not the one with that SHA-256.
    """
    if is_from_file(saved):
        return files.from_saved(saved)
    with as_written(SAVED):
        return class_of(saved)(**saved["fields"])


def name_in(saved: Mapping[str, Any]) -> str:
    """Returns what to call the recipe of a run: its kind, or the name of its file."""
    if not is_from_file(saved):
        return saved["kind"]
    if pickled.is_pickled(saved):
        return saved["name"]
    name = "" if saved["name"] == "recipe" else f":{saved['name']}"
    return files.short_name(f"{saved['file']}{name}")


def chosen_fields(saved: Mapping[str, Any], base: Recipe | None = None) -> dict[str, Any]:
    """Returns the fields that are not as in `base`, or as by default. Of a user's file it returns all of them: only
    running it would say its defaults."""
    if is_from_file(saved):
        return dict(saved["fields"])
    recipe = from_dict(saved)
    before = dataclasses.asdict(type(recipe)() if base is None else base)
    return {name: value for name, value in dataclasses.asdict(recipe).items() if value != before[name]}


def differences(first: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Returns the fields that differ, each with its two values."""
    if first.kind != other.kind:
        return {"kind": (first.kind, other.kind)}
    if first.kind == FROM_FILE:
        left, right = files.describe(first), files.describe(other)
        places = {
            name: (left.get(name), right.get(name))
            for name in ("file", "name", "code")
            if left.get(name) != right.get(name)
        }
        if places:
            return places
    left, right = dataclasses.asdict(first), dataclasses.asdict(other)
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


def begun_with(saved: Mapping[str, Any], recipe: Recipe, *, run: Path) -> Recipe:
    """Returns the recipe that a run began with; `recipe` brings its functions where they are in no file.

    Raises:
        RecipeError: It can no longer be read, or its functions compute something else than those of `recipe`.
    """
    if not pickled.is_pickled(saved):
        return from_dict(saved)
    pickled.require_same(saved, to_dict(recipe), run=run)
    return dataclasses.replace(recipe, **saved["fields"])


def is_saved_as(saved: Mapping[str, Any], recipe: Recipe) -> bool:
    """Returns whether a recipe.json is of this very recipe; False if its kind or an option is unknown."""
    try:
        return not differences(from_dict(saved), recipe)
    except RecipeError:
        return False
