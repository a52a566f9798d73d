"""Conversion of recipes to the content of `recipe.json`, and back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError, as_written
from plimsoll.recipes.flat import chosen
from plimsoll.recipes.own import files, pickled
from plimsoll.recipes.parts import Uses
from plimsoll.recipes.recipe import FROM_FILE, Recipe
from plimsoll.recipes.registered import names_of, part_class
from plimsoll.recipes.registry import code_of, of_parts, swapped

SAVED = "recipe.json of the run"


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Returns the content of `recipe.json`, which is also part of the key of saved plans.

    Raises:
        RecipeError: An option of a user's recipe is not a number, a string, a boolean or None.
    """
    fields = recipe.options
    for name, value in fields.items():
        if not isinstance(value, bool | int | float | str | None):
            owner = type(recipe.origin or recipe).__name__
            raise RecipeError(
                f"the field {name} of {owner} is a {type(value).__name__}: fields are options, and kept as JSON:"
                " numbers, strings, booleans or None"
            )
    # A part without a registered name is in a user's file, or made of functions that are in no file.
    names = names_of(recipe.parts)
    parts = {role: name for role, name in names.items() if name is not None}
    if len(parts) < len(names):
        return {"kind": FROM_FILE, **files.describe(recipe), "parts": parts, "fields": fields}

    # A part from another package is also identified by a hash of that package's code.
    classes = {name: type(recipe.parts[role]) for role, name in parts.items()}
    code = {name: code_of(cls) for name, cls in classes.items() if not cls.__module__.startswith("plimsoll.")}
    saved = {"kind": recipe.kind, "parts": parts, "fields": fields}
    return saved | {"code": code} if code else saved


def name_of(recipe: Recipe) -> str:
    """Returns the name of a recipe for messages and folders: its kind, or the name of its file."""
    return name_in(to_dict(recipe))


def is_from_file(saved: Mapping[str, Any]) -> bool:
    """Returns True if a saved recipe is a user's own code. Such code is run only if it is needed."""
    with as_written(SAVED):
        return saved["kind"] == FROM_FILE


def from_dict(saved: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that `to_dict` wrote.

    Raises:
        RecipeError: A kind, a part or an option is unknown, or a user's file has changed (another SHA-256).
    """
    with as_written(SAVED):
        kind, fields, parts = saved["kind"], saved["fields"], saved["parts"]
    if kind == FROM_FILE:
        recipe = files.from_saved(saved)
        now = names_of(recipe.parts)
        other = {role: name for role, name in parts.items() if name != now[role]}
        return (swapped(recipe, other) if other else recipe).replace(**fields)
    with as_written(SAVED):
        return of_parts(parts, fields)


def name_in(saved: Mapping[str, Any]) -> str:
    """Returns the name of a saved recipe: its kind, or the name of its file."""
    if not is_from_file(saved):
        return saved["kind"]
    if pickled.is_pickled(saved):
        return saved["name"]
    name = "" if saved["name"] == "recipe" else f":{saved['name']}"
    return files.short_name(f"{saved['file']}{name}")


def uses_of(saved: Mapping[str, Any]) -> Uses:
    """Returns the `Model.uses` of a saved recipe: commands, the best checkpoint, the report.

    For a model in a user's file they are the defaults: the file is not run.
    """
    with as_written(SAVED):
        parts = saved["parts"]
        role = next((role for role in ("model", "recipe") if role in parts), None)
        return Uses() if role is None else part_class(role, parts[role]).uses


def chosen_fields(saved: Mapping[str, Any], base: Recipe | None = None) -> dict[str, Any]:
    """Returns the options that differ from `base`, or from the defaults if `base` is None. For a user's file it returns
    all options, because the defaults are known only by running it."""
    return dict(saved["fields"]) if is_from_file(saved) else chosen(from_dict(saved), base)


def differences(first: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Compares kinds, files, parts, then options, up to a difference. Returns both values of each differing entry."""
    left, right = to_dict(first), to_dict(other)
    for names in (("kind",), ("file", "name", "code"), ("parts",)):
        places = {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}
        if places:
            return places
    left, right = left["fields"], right["fields"]
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


def begun_with(saved: Mapping[str, Any], recipe: Recipe, *, run: Path) -> Recipe:
    """Returns the recipe that a run began with. Functions that are in no file are taken from `recipe`.

    Raises:
        RecipeError: The saved recipe can no longer be read, or its functions differ from those of `recipe`.
    """
    if not pickled.is_pickled(saved):
        return from_dict(saved)
    pickled.require_same(saved, to_dict(recipe), run=run)
    return recipe.replace(**saved["fields"])


def is_saved_as(saved: Mapping[str, Any], recipe: Recipe) -> bool:
    """Returns True if a recipe.json holds the same recipe; False if its kind or an option is unknown."""
    try:
        return not differences(from_dict(saved), recipe)
    except RecipeError:
        return False
