"""Recipes by name: presets of registered parts, and users' files.

A preset is a name for one complete recipe. A file is loaded only if the user names it.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError, did_you_mean
from plimsoll.recipes.family import Preset
from plimsoll.recipes.flat import chosen, overridden
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registered import (
    ROLES,
    broken_packages,
    is_config_name,
    part_class,
    parts_in,
    preparations,
    presets,
    read_config_table,
    record_of,
)
from plimsoll.recipes.verbs import resolved


def preset(name: str, **options: Any) -> Recipe:
    """Returns a built-in recipe (training problem) by name, with some of its options changed.

    Options that you pass override those of the preset, and reset options that conflict with them. For example
    `target_params` resets the preset's width, layers and heads to None. `Recipe.replace` does not reset them, and
    raises RecipeError for such a conflict.

    Args:
        name: Name in the list of `plimsoll recipes`, like "code", or the path of a Python or TOML file with a recipe.
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
    return overridden(recipe, options) if options else recipe


def _preset(name: str) -> Recipe:
    described = record_of(name)
    if described is not None:
        return of_parts(described.parts, described.options)
    from plimsoll.recipes.own import files

    if files.is_file_name(name):
        return files.load(name)
    if is_config_name(name):
        return read_config(name)
    if Path(name).exists():
        raise RecipeError(
            f"{name} is no recipe: data is named by an option, like `plimsoll train stories --dataset-id {name}`, and a"
            " recipe of your own is in a Python file"
        )
    known = presets()
    hint = did_you_mean(name, known, most=3, like=0.4) or ":"
    raise RecipeError(
        f"there is no recipe called {name!r}{hint} `plimsoll recipes` lists all {len(known)}, and a file of your own is"
        f" named like my_recipe.py{broken_packages()}"
    )


def read_config(file: str, base: str | None = None) -> Recipe:
    """Returns the recipe in a TOML file.

    Args:
        file: Path of the file.
        base: Name of the recipe whose options the file changes; None if the file itself names a recipe.

    Raises:
        RecipeError: The file cannot be read, names no recipe, names one besides `base`, or has an option that the
            recipe refuses.
    """
    table = read_config_table(file)
    like = table.pop("like", None)
    names_recipe = like is not None or "parts" in table
    options = {name: None if value == "None" else value for name, value in table.items() if name not in Preset._fields}
    if base is not None and names_recipe:
        raise RecipeError(f"{base} and --config {file} each name a recipe: leave {base} out, or `like` and `parts`")
    if base is None and not names_recipe:
        raise RecipeError(
            f'{file} names no recipe: add `like = "stories"`, or its `parts` as `plimsoll config stories` prints them'
        )
    try:
        if "parts" in table:
            return of_parts(parts_in(table), options)
        return overridden(preset(base) if base is not None else _preset_like(like), options)
    except RecipeError as problem:
        raise RecipeError(f"{file}: {problem}") from None


def _preset_like(like: Any) -> Recipe:
    """Returns the preset that `like` names. `like` cannot name a file: a TOML file must not name code to run."""
    described = record_of(like) if isinstance(like, str) else None
    if described is None:
        hint = did_you_mean(str(like), presets()) or ": `plimsoll recipes` lists them"
        raise RecipeError(f"like = {json.dumps(like, default=str)} is no preset{hint}")
    return of_parts(described.parts, described.options)


def of_parts(names: Mapping[str, str], options: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of registered parts, with some of their options.

    Args:
        names: Names of the model, the data and the optimizer by role; or the name of one class for all, as "recipe".
        options: Values of options of any part.

    Raises:
        RecipeError: A part or an option is unknown, or a value is refused.
    """
    parts = {role: part_class(role, name)() for role, name in names.items()}
    recipe = parts["recipe"].composed() if "recipe" in parts else Recipe(**parts)
    return recipe.replace(**options)


def recipes_with(option: str) -> list[str]:
    """Returns the names of the recipes that have an option of that name, without recipes that cannot be loaded."""
    names = []
    for name in presets():
        with suppress(RecipeError):
            if option in preset(name).options:
                names.append(name)
    return names


def code_of(cls: type) -> str:
    """Returns the SHA-256 of the Python files of the package of `cls`, a part of the key of saved plans."""
    module = sys.modules[cls.__module__.partition(".")[0]]
    file = Path(module.__file__ or "")
    files_of_package = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = hashlib.sha256()
    for path in files_of_package:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def swapped(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """Returns the recipe with other parts. Options that differ from the defaults are kept if the new parts have them.

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
    other = recipe.replace(**{role: part_class(role, name)() for role, name in names.items()})
    return other.replace(**{name: value for name, value in chosen(recipe).items() if name in other.options})


def make_data(request: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the data set `request["name"]` from `request["options"]`, and returns what `prepare --json` prints."""
    preparation = preparations()[request["name"]]
    return resolved(preparation.make)(resolved(preparation.options)(**request["options"]))
