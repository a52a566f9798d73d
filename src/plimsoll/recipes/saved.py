"""From a recipe to what `recipe.json` holds, and back."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.recipes.base import FROM_FILE, Recipe
from plimsoll.recipes.own import files
from plimsoll.recipes.registry import KINDS


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Returns what `recipe.json` holds, and what the planner's answers are kept by.

    Raises:
        RecipeError: A field of a user's recipe is not a number, a string, a boolean or None.
    """
    fields = dataclasses.asdict(recipe)
    if recipe.kind != FROM_FILE:
        return {"kind": recipe.kind, "fields": fields}
    for name, value in fields.items():
        if not isinstance(value, bool | int | float | str | None):
            raise RecipeError(
                f"the field {name} of {type(recipe).__name__} is a {type(value).__name__}: fields are options, and"
                " kept as JSON: numbers, strings, booleans or None"
            )
    return {"kind": recipe.kind, **files.describe(recipe), "fields": fields}


def name_of(recipe: Recipe) -> str:
    """What to call a recipe that the user has not named: by its kind, or by its file."""
    if recipe.kind != FROM_FILE:
        return recipe.kind
    found = files.describe(recipe)
    return files.short_name(found["file"] + ("" if found["name"] == "recipe" else f":{found['name']}"))


def from_dict(saved: Mapping[str, Any]) -> Recipe:
    """What `to_dict` wrote. Unknown kinds and fields are refused: of our own recipes nothing is run, and of a
    user's the file with the SHA-256 that stands there."""
    if not isinstance(saved, Mapping):
        raise RecipeError("recipe.json holds no recipe: it was not written by this program, or was altered")
    kind = saved.get("kind")
    if kind == FROM_FILE:
        return files.from_saved(saved)
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecipeError(f"recipe.json is of the kind {kind!r}, which this version does not know: {', '.join(KINDS)}")
    module, attribute = KINDS[kind]
    cls: type[Recipe] = getattr(importlib.import_module(module), attribute)
    known = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(saved.get("fields"), Mapping):
        raise RecipeError("recipe.json has no fields: it was not written by this program, or only in part")
    unknown = sorted(set(saved["fields"]) - known)
    if unknown:
        raise RecipeError(f"recipe.json has fields that this version does not know: {', '.join(unknown)}")
    return cls(**saved["fields"])


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Field to its two values, for the fields that differ."""
    if one.kind != other.kind:
        return {"kind": (one.kind, other.kind)}
    if one.kind == FROM_FILE:
        there, here = files.describe(one), files.describe(other)
        elsewhere = {name: (there[name], here[name]) for name in ("file", "name") if there[name] != here[name]}
        if elsewhere:
            return elsewhere
    left, right = dataclasses.asdict(one), dataclasses.asdict(other)
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


def is_saved_as(saved: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether a recipe.json is of this very recipe; no, where it can no longer be read."""
    try:
        return not differences(from_dict(saved), recipe)
    except RecipeError:
        return False
