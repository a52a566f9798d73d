"""Recipes in users' files: `my_recipe.py`, or `my_recipe.py:name` if the file has several.

Every process that needs the recipe runs the file: the command, compilation, the trial step and training. recipe.json
holds the path, the recipe's name and fields, and the SHA-256 of the file and of the modules beside it that it imports.
If the code has changed, a run is not continued, and saved plans are not used.
"""

import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.recipes.own import pickled
from plimsoll.recipes.own.recipe import OwnRecipe, recipe_of
from plimsoll.recipes.own.user_code import as_recipe_error, file_of, is_users
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registered import names_of

_loaded: dict[str, tuple[dict[str, str], ModuleType]] = {}
"""Hashes of sources and imported module of each recipe file, by its path. A process runs the same code once."""
_homes: dict[type, ModuleType] = {}
"""Module that has a recipe at its top level, by the recipe's `own_class`: the class may be from another module."""
_being_imported: set[str] = set()


def is_file_name(name: str) -> bool:
    """Returns True if a recipe's name is that of a Python file: `my_recipe.py` or `my_recipe.py:large`."""
    return name.partition(":")[0].endswith(".py")


def short_name(name: str) -> str:
    """Returns the short name of a recipe's file, for folders of runs: `my_recipe` or `my_recipe-large`."""
    path, _, inside = name.partition(":")
    stem = Path(path).name.removesuffix(".py").removesuffix(".toml")  # a preset's name may have a dot in it
    return f"{stem}-{inside}" if inside else stem


def load(name: str) -> Recipe:
    """Returns the recipe in a file: the one named after the colon, the only one, or the one called `recipe`."""
    file, _, inside = name.partition(":")
    path = _existing(Path(file).expanduser().absolute(), file)
    module = _import(path, sources(path))
    recipes = _recipes_in(module)
    if not recipes:
        raise RecipeError(
            f"{file} has no recipe in it: add `recipe = plimsoll.recipe(init=..., loss=..., data=..., optimizer=...)`"
            " at its top level, not below `if __name__ == ...` alone, or of a class `recipe = YourClass()`"
            " (docs/your-own.md)"
        )
    first = next(iter(recipes))
    chosen = inside or (first if len(recipes) == 1 else "recipe")
    if chosen not in recipes:
        raise RecipeError(
            f"{file} has no recipe called {chosen!r}: name one of {', '.join(recipes)}, like {file}:{first}"
        )
    recipe = recipes[chosen]
    cls = own_class(recipe)
    if cls is not None:
        _homes[cls] = module
    return recipe


def own_class(recipe: Recipe) -> type | None:
    """Returns the class of a recipe's first part without a registered name. Its module is in the recipe's file.

    None if all parts are registered.
    """
    names = names_of(recipe.parts)
    return next((type(recipe.parts[role]) for role, name in names.items() if name is None), None)


def describe(recipe: Recipe) -> dict[str, Any]:
    """Returns entries of recipe.json for a user's code: file, name, and hashes of sources. For code that is in no file
    (a notebook, a prompt) they are name and hashes of code and data."""
    cls = own_class(recipe)
    assert cls is not None, "of registered parts no file is needed"
    module = _homes.get(cls) or sys.modules.get(cls.__module__)
    file = file_of(module)
    if recipe.origin is not None and (recipe.origin.in_no_file or file is None):
        return pickled.describe(recipe)
    if module is None or file is None:
        called = "an optax transformation" if cls.__module__.startswith("plimsoll.") else cls.__name__
        raise RecipeError(
            f"{called} is a part that is in no file, and the processes that compile and train look for it in one: write"
            " it into a Python file, with the recipe at its top level"
        )
    names = [name for name, offered in _recipes_in(module).items() if own_class(offered) is cls]
    if not names:
        raise RecipeError(
            f"{file} has no recipe like this {cls.__name__} at its top level, where the processes that compile"
            " and train look for it: assign it there, like `recipe = ...`"
        )
    path = str(file)
    if path in _being_imported:
        raise RecipeError(
            f"{file} plans or trains its own recipe while it is imported, and would do so in every process that imports"
            ' it: put that under `if __name__ == "__main__":`'
        )
    return {"file": path, "name": names[0], "sources": sources(file)}


def from_saved(saved: Mapping[str, Any]) -> Recipe:
    """Returns the recipe in a user's file that `saved.to_dict` described, with the options as set in the file.

    Raises:
        RecipeError: The code has changed, or it was in no file and this process does not have it.
    """
    if pickled.is_pickled(saved):
        return pickled.from_saved(saved)
    path = _existing(Path(saved["file"]), saved["file"])
    before = saved["sources"]
    now = sources(path)
    changed = sorted({name for name, _ in before.items() ^ now.items()})
    if changed:
        raise RecipeError(
            f"{', '.join(str(path.parent / name) for name in changed)} changed since the run began (another SHA-256),"
            " and with other code it would be another run: put the old content back (the run's folder `source` has a"
            " copy) to go on with it, or start anew with another --run"
        )
    return load(f"{path}:{saved['name']}")


def sources(path: Path) -> dict[str, str]:
    """Returns the SHA-256 of a file and of all modules in its folder that it imports, by relative path.

    The modules are found without running the code. Modules from elsewhere are not hashed.
    """
    finder = ModuleFinder(path=[str(path.parent)])
    with as_recipe_error(f"{path.name} cannot be read as Python", path.parent):
        finder.run_script(str(path))
    imported = [getattr(module, "__file__", None) for module in finder.modules.values()]
    files = {Path(file).absolute() for file in imported if file}
    ours = sorted(file for file in files if is_users(file, path.parent))
    return {str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest() for file in ours}


def _recipes_in(module: ModuleType) -> dict[str, Recipe]:
    """Returns the recipes at the top level of a file, by name."""
    offered = vars(module).items()
    return {name: recipe_of(value) for name, value in offered if isinstance(value, Recipe | OwnRecipe)}


def _existing(path: Path, named: str) -> Path:
    if not path.is_file():
        raise RecipeError(
            f"there is no recipe file {named}: name a Python file that has a recipe in it (docs/your-own.md), or one of"
            " the recipes that `plimsoll recipes` lists"
        )
    return path


def _import(path: Path, made_from: dict[str, str]) -> ModuleType:
    known = _loaded.get(str(path))
    if known is not None and known[0] == made_from:
        return known[1]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python my_recipe.py` does: it may import modules beside it
    # Gives the module a unique name: a recipe file named like a package must not replace that package.
    name = f"plimsoll_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up
    _being_imported.add(str(path))
    try:
        with as_recipe_error(f"{path.name} cannot be imported", path.parent):
            spec.loader.exec_module(module)
    finally:
        _being_imported.discard(str(path))
    _loaded[str(path)] = made_from, module
    return module


def keep_source(saved: Mapping[str, Any], folder: Path) -> None:
    """Copies the sources of a recipe into its run, for comparison: the copies are never run.

    Recipes of packages and functions in no file have no sources to copy.

    Args:
        saved: Content of recipe.json.
        folder: Folder of the run.
    """
    for name in saved.get("sources", ()):
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(saved["file"]).parent / name, copy)
