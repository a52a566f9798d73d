"""Recipes by name: presets of registered parts, kinds of packages, and files of the user's.

A preset is a name for one complete recipe. Nothing else is ever loaded but a file that the user names.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import RecipeError, did_you_mean
from plimsoll.options import options_of, value_of
from plimsoll.recipes.flat import chosen, overridden, rows
from plimsoll.recipes.parts import Length
from plimsoll.recipes.recipe import KINDS, Recipe
from plimsoll.recipes.registered import (
    PRESETS,
    ROLES,
    broken_packages,
    installed,
    loaded,
    part_class,
    preparations,
    presets,
)
from plimsoll.recipes.verbs import resolved

if TYPE_CHECKING:
    from plimsoll.recipes.own.recipe import OwnRecipe


def recipe_class(kind: str) -> type[OwnRecipe]:
    """Returns the class of a package's kind.

    Raises:
        RecipeError: Nobody has registered the kind, or its package cannot be loaded.
    """
    from plimsoll.recipes.own.recipe import OwnRecipe

    known = {name: cls for family in installed().families.values() for name, cls in family.kinds.items()}
    if kind in KINDS.values():
        raise RecipeError(
            "recipe.json is of an earlier version, whose recipes had no parts, and its run cannot be used any more:"
            " train it anew"
        )
    if kind not in known:
        raise RecipeError(f"recipe.json is of the kind {kind!r}, which this version does not know{broken_packages()}")
    reference = known[kind]
    cls = loaded(reference, what=f"recipes of the kind {kind}")
    if not (isinstance(cls, type) and issubclass(cls, OwnRecipe) and cls.kind == kind):
        raise RecipeError(
            f"{reference} is registered as the kind {kind!r}, and is no subclass of plimsoll.OwnRecipe with that `kind`"
        )
    return cls


def preset(name: str, **options: Any) -> Recipe:
    """Returns a built-in recipe (training problem) by name, with some of its options changed.

    Options that you pass override those of the preset, and reset options that conflict with them. For example
    `target_params` resets the preset's width, layers and heads to None. `Recipe.replace` does not reset them, and
    raises RecipeError for such a conflict.

    Args:
        name: Name in the list of `plimsoll recipes`, like "code", or the path of a Python file with a recipe.
        options: Options of the recipe with their new values, like `seq_len=256`.

    Returns:
        The recipe: a frozen dataclass of its parts.

    Raises:
        RecipeError: There is no such recipe, it has no such option, or the value is invalid.

    Example:
        >>> recipe = plimsoll.preset("code", target_params=5_000_000, seq_len=256)
        >>> recipe.data.seq_len, recipe.model.width
        (256, None)
    """
    recipe = _preset(name)
    return overridden(recipe, options, name=name) if options else recipe


def _preset(name: str) -> Recipe:
    if name in PRESETS:
        return of_parts(PRESETS[name].parts, PRESETS[name].options)
    from plimsoll.recipes.own import files

    if files.is_file_name(name):
        return files.load(name)
    known = presets()
    if name not in known:
        hint = did_you_mean(name, known, most=3, like=0.4) or ":"
        raise RecipeError(
            f"there is no recipe called {name!r}{hint} `plimsoll recipes` lists all {len(known)}, and a file of your"
            f" own is named like my_recipe.py{broken_packages()}"
        )
    described = known[name]
    if not described.make:
        return of_parts(described.parts, described.options)
    from plimsoll.recipes.own.recipe import recipe_of

    return recipe_of(resolved(described.make)())


def of_parts(names: Mapping[str, str], options: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of registered parts, with some of their options.

    Args:
        names: Name of the model, the data and the optimizer.
        options: Values of options of any part. A text that is no value of its type is read as the command line's.

    Raises:
        RecipeError: A part or an option is unknown, or a value is refused.
    """
    rest = {**options}
    made: dict[str, Any] = {}
    for role, cls in {role: part_class(role, names[role]) for role in ROLES}.items() | {("length", Length)}:
        own: dict[str, Any] = {}
        for option in options_of(cls):
            if option.name not in rest:
                continue
            value = rest.pop(option.name)
            own[option.name] = value_of(option, value) if isinstance(value, str) else value
        made[role] = cls(**own)
    if rest:
        raise RecipeError(f"no part of {', '.join(names.values())} has an option {next(iter(rest))}")
    return Recipe(**made)


def known_recipes() -> dict[str, Recipe]:
    """Returns the recipes by their names, without those of a broken package, which `plimsoll recipes` names."""
    recipes = {}
    for name in presets():
        with contextlib.suppress(RecipeError):
            recipes[name] = preset(name)
    return recipes


def recipes_with(name: str) -> list[str]:
    """Returns the names of the recipes that have an option of that name."""
    recipes = known_recipes().items()
    return [called for called, recipe in recipes if name in (option.name for option in rows(recipe))]


def code_of(cls: type) -> str:
    """Returns the SHA-256 of a package's Python files: answers of the planner are kept by it."""
    import hashlib

    module = sys.modules[cls.__module__.partition(".")[0]]
    file = Path(module.__file__ or "")
    files_of_package = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = hashlib.sha256()
    for path in files_of_package:
        digest.update(f"{path.relative_to(file.parent)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def swapped(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """Returns the recipe with other parts, by their names. Options that were set are kept where both have them.

    Args:
        recipe: The recipe.
        names: Names of parts by role, like {"data": "text", "optimizer": "muon"}.

    Raises:
        RecipeError: A role or a name is unknown, or the parts do not go together.
    """
    if unknown := [role for role in names if role not in ROLES]:
        raise RecipeError(f"--swap {unknown[0]}=...: a recipe has the parts {', '.join(ROLES)}")
    if recipe.origin is not None:
        raise RecipeError("--swap exchanges parts, and this recipe is of functions of your own: change it in Python")
    values = chosen(recipe)
    changed: dict[str, Any] = {}
    for role, name in names.items():
        cls = part_class(role, name)
        changed[role] = cls(**{option.name: values[option.name] for option in options_of(cls) if option.name in values})
    return recipe.replace(**changed)


def make_data(request: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the data set `request["name"]` from `request["options"]`, and returns what `prepare --json` prints."""
    preparation = preparations()[request["name"]]
    return resolved(preparation.make)(resolved(preparation.options)(**request["options"]))
