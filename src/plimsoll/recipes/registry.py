"""Recipes by name: the built-in folders, and packages that register in the entry point group `plimsoll.recipes`.

A kind is a class; a preset is a name for one complete recipe of a kind. Nothing else is ever loaded but a file that
the user names. Built-in names are found without looking at what is installed, and a package cannot take them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.options import options_of
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.family import Family, Preparation, Preset
from plimsoll.recipes.overrides import overridden
from plimsoll.recipes.verbs import resolved

GROUP = "plimsoll.recipes"
"""Entry points of packages with recipes: name = "module:FAMILY"."""
BUILT_IN = {
    name: f"plimsoll.recipes.{name}.family:FAMILY"
    for name in ("text", "control", "puzzles", "longcontext", "recommend", "finetune")
}
"""Written as a package writes its entry point. They stand here and not in the package's metadata, because the metadata
of a checkout may be older than its source."""


def _family(reference: str) -> Family:
    family = resolved(reference)
    if not isinstance(family, Family):
        raise TypeError(f"{reference} is a {type(family).__name__} and no plimsoll.recipes.family.Family")
    return family


FAMILIES = {name: _family(reference) for name, reference in BUILT_IN.items()}
PRESETS: dict[str, Preset] = {name: preset for family in FAMILIES.values() for name, preset in family.presets.items()}
KINDS: dict[str, str] = {kind: cls for family in FAMILIES.values() for kind, cls in family.kinds.items()}
"""These three: built-in ones."""


class Installed(NamedTuple):
    """Families of installed packages."""

    families: Mapping[str, Family]
    """By a name for people, like "waves (package waves-recipes 0.1)"."""
    broken: tuple[str, ...]
    """Why others could not be loaded, a sentence each."""


@cache
def installed() -> Installed:
    """Returns what packages register. One that fails, or takes a name that is taken, is left out and named."""
    from importlib.metadata import entry_points

    families, broken = {}, []
    taken = {*PRESETS, *KINDS, *(name for family in FAMILIES.values() for name in family.prepares)}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = f" (package {entry.dist.name} {entry.dist.version})" if entry.dist is not None else ""
        name = f"{entry.name}{package}"
        try:
            family = _family(entry.value)
            names = {*family.presets, *family.kinds, *family.prepares}
        except (Exception, SystemExit) as problem:  # whatever somebody else's module does when it is imported
            broken.append(f"{name} cannot be loaded: {type(problem).__name__}: {problem}")
            continue
        if names & taken:
            broken.append(f"{name} is left out: {', '.join(sorted(names & taken))} is taken by another family")
            continue
        taken |= names
        families[name] = family
    return Installed(families, tuple(broken))


def families() -> Iterator[Family]:
    """Yields the built-in families, then those of packages."""
    yield from FAMILIES.values()
    yield from installed().families.values()


def presets() -> dict[str, Preset]:
    """Returns every preset by its name, built-in ones first."""
    return {name: preset for family in families() for name, preset in family.presets.items()}


def record_of(name: str) -> Preset | None:
    """Returns the record of a preset; None for the name of a file."""
    return PRESETS.get(name) or presets().get(name)  # built-in ones are found without looking at packages


def known_recipes() -> dict[str, Recipe]:
    """Returns the recipes by their names, without those of a broken package, which `plimsoll recipes` names."""
    recipes = {}
    for name in presets():
        with contextlib.suppress(RecipeError):
            recipes[name] = preset(name)
    return recipes


def preparations() -> dict[str, Preparation]:
    """Returns every data set that `plimsoll prepare` makes, by its name."""
    return {name: preparation for family in families() for name, preparation in family.prepares.items()}


def make_data(request: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the data set `request["name"]` from `request["options"]`, and returns what `prepare --json` prints."""
    preparation = preparations()[request["name"]]
    return resolved(preparation.make)(resolved(preparation.options)(**request["options"]))


def broken_packages() -> str:
    """Returns a clause that names packages whose recipes could not be loaded; empty if there are none."""
    return "".join(f". The recipe package {problem}" for problem in installed().broken)


def recipe_class(kind: str) -> type[Recipe]:
    """Returns the class of a built-in kind, or of a package's.

    Raises:
        RecipeError: Nobody has registered the kind, or its package cannot be loaded.
    """
    if kind in KINDS:
        return resolved(KINDS[kind])
    known = KINDS | {name: cls for family in installed().families.values() for name, cls in family.kinds.items()}
    if kind not in known:
        raise RecipeError(
            f"recipe.json is of the kind {kind!r}, which this version does not know:"
            f" {names_in_words(known, all_of_them='`plimsoll recipes`')}{broken_packages()}"
        )
    reference = known[kind]
    try:
        cls = resolved(reference)
    except Exception as problem:
        raise RecipeError(
            f"recipes of the kind {kind} are in {reference}, which cannot be loaded: {type(problem).__name__}:"
            f" {problem}. Repair or reinstall its package"
        ) from problem
    if not (isinstance(cls, type) and issubclass(cls, Recipe) and cls.kind == kind):
        raise RecipeError(
            f"{reference} is registered as the kind {kind!r}, and is no subclass of plimsoll.Recipe with that `kind`"
        )
    return cls


def preset(name: str, **options: Any) -> Recipe:
    """Returns a built-in recipe (training problem) by name, with some of its options changed.

    Options that you pass override those of the preset, and reset options that conflict with them. For example
    `target_params` resets the preset's width, layers and heads to None. `dataclasses.replace` does not reset them, and
    raises RecipeError for such a conflict.

    Args:
        name: Name in the list of `plimsoll recipes`, like "code", or the path of a Python file with a recipe.
        options: Fields of the recipe with their new values, like `seq_len=256`.

    Returns:
        The recipe: a frozen dataclass.

    Raises:
        RecipeError: There is no such recipe, it has no such option, or the value is invalid.

    Example:
        >>> recipe = plimsoll.preset("code", target_params=5_000_000, seq_len=256)
        >>> recipe.seq_len, recipe.width
        (256, None)
    """
    recipe = _preset(name)
    return overridden(recipe, options, name=name) if options else recipe


def _preset(name: str) -> Recipe:
    if name in PRESETS:
        return resolved(PRESETS[name].make)()
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
    return resolved(known[name].make)()


def recipes_with(name: str) -> list[str]:
    """Returns the names of the recipes that have an option of that name."""
    recipes = known_recipes().items()
    return [called for called, recipe in recipes if name in (option.name for option in options_of(recipe))]


def code_of(cls: type[Recipe]) -> str:
    """Returns the SHA-256 of a package's Python files: answers of the planner are kept by it."""
    import hashlib

    module = sys.modules[cls.__module__.partition(".")[0]]
    file = Path(module.__file__ or "")
    files_of_package = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = hashlib.sha256()
    for path in files_of_package:
        digest.update(f"{path.relative_to(file.parent)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
