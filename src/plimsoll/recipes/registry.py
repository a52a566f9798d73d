"""Names of recipes and presets, and the way from a saved `recipe.json` back to the recipe.

A kind is a class; a preset is a name for one complete recipe of a kind. Only what stands here, and a file that the
user names, is ever loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.recipes.base import Recipe

PRESETS: dict[str, tuple[str, str, str]] = {
    "stories": ("plimsoll.recipes.stories", "Text", "a small language model on any text, streamed"),
    "code": ("plimsoll.recipes.code", "code", "the same on Python's own source: needs no data, the demo"),
}
KINDS: dict[str, tuple[str, str]] = {"stories": ("plimsoll.recipes.stories", "Text")}


def preset(name: str) -> Recipe:
    """The recipe of that name, complete, to be changed with `dataclasses.replace`."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise RecipeError(f"there is no recipe called {name!r}: `plimsoll recipes` lists {', '.join(PRESETS)}.{hint}")
    module, attribute, _ = PRESETS[name]
    make: Callable[[], Recipe] = getattr(importlib.import_module(module), attribute)
    return make()


def from_dict(saved: Mapping[str, Any]) -> Recipe:
    """What `Recipe.to_dict` wrote. Unknown kinds and fields are refused: nothing from the file is run."""
    kind = saved.get("kind")
    if kind not in KINDS:
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
    left, right = dataclasses.asdict(one), dataclasses.asdict(other)
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}
