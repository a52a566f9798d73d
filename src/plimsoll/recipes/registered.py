"""Parts, presets and data sets by name: built-in ones, and those of packages with the entry point `plimsoll.recipes`.

A part is imported only if it is requested by name. Built-in names are found without a search of installed packages, and
a package cannot take them.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.recipes.family import Family, Inspection, Preparation, Preset
from plimsoll.recipes.parts import Data, Model
from plimsoll.recipes.verbs import resolved

GROUP = "plimsoll.recipes"
"""Group of the entry points of packages with recipes. An entry is name = "module:FAMILY"."""
ROLES = ("model", "data", "optimizer")
"""Roles of the parts of a recipe, besides the length of the run."""


def read_presets(path: Path) -> dict[str, Preset]:
    """Returns the presets of a TOML file by name. A preset inherits from the earlier preset named by its key `like`."""
    described = set(Preset._fields)
    tables: dict[str, dict[str, Any]] = {}
    presets = {}
    for name, own in tomllib.loads(path.read_text("utf-8")).items():
        table = tables.get(own.pop("like", ""), {}) | own
        tables[name] = table
        options = {option: value for option, value in table.items() if option not in described}
        presets[name] = Preset(
            purpose=table["purpose"],
            parts=table["parts"],
            options={option: None if value == "None" else value for option, value in options.items()},
            example=table["example"],
            often=tuple(table["often"]),
        )
    return presets


def is_config_name(name: str) -> bool:
    """Returns True if a recipe's name is the path of a TOML file (`read_config_table`)."""
    return name.endswith(".toml")


def read_config_table(file: str) -> dict[str, Any]:
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


def parts_in(table: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the names of the parts in a table of a TOML file. Raises RecipeError unless each role has one name."""
    parts = table["parts"]
    is_complete = isinstance(parts, dict) and parts.keys() in ({*ROLES}, {"recipe"})
    if not is_complete or not all(isinstance(name, str) for name in parts.values()):
        raise RecipeError(
            'parts must name a model, data and an optimizer, like { model = "decoder", data = "text", optimizer ='
            f' "adamw" }}: it is {json.dumps(parts, default=str)}'
        )
    return parts


def read_family(path: Path, presets: Mapping[str, Preset]) -> Family:
    """Returns the family that a TOML file describes, with these presets."""
    table = tomllib.loads(path.read_text("utf-8"))
    return Family(
        parts=table["parts"],
        presets=presets,
        prepares={name: Preparation(**fields) for name, fields in table["prepares"].items()},
        inspects=tuple(Inspection(**form) for form in table["inspects"]),
    )


HERE = Path(__file__).parent
PRESETS = read_presets(HERE / "presets.toml")
BUILT_IN = read_family(HERE / "built_in.toml", PRESETS)


class Installed(NamedTuple):
    """Families of installed packages."""

    families: list[Family]
    broken: list[str]
    """A sentence about each family that was left out, with the reason."""


@cache
def installed() -> Installed:
    """Returns the families of packages. `broken` names a family that fails to load or uses another's name."""
    from importlib.metadata import entry_points

    found = Installed([], [])
    taken = BUILT_IN.names
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = f" (package {entry.dist.name} {entry.dist.version})" if entry.dist is not None else ""
        name = f"{entry.name}{package}"
        try:
            family = resolved(entry.value)
            names = family.names
        except (Exception, SystemExit) as problem:  # importing a package's module may raise anything
            found.broken.append(f"{name} cannot be loaded: {type(problem).__name__}: {problem}")
            continue
        if names & taken:
            found.broken.append(f"{name} is left out: {', '.join(sorted(names & taken))} is taken by another family")
            continue
        taken |= names
        found.families.append(family)
    return found


def families() -> Iterator[Family]:
    """Yields the built-in family, then those of packages. Packages are searched only after the first."""
    yield BUILT_IN
    yield from installed().families


def presets() -> dict[str, Preset]:
    """Returns every preset by its name, built-in ones first."""
    return {name: preset for family in families() for name, preset in family.presets.items()}


def record_of(name: str) -> Preset | None:
    """Returns the preset of this name; None if there is none."""
    return next((family.presets[name] for family in families() if name in family.presets), None)


def preparations() -> dict[str, Preparation]:
    """Returns every kind of data set that `plimsoll prepare` makes, by its name."""
    return {name: preparation for family in families() for name, preparation in family.prepares.items()}


def broken_packages() -> str:
    """Returns a clause that names packages whose recipes could not be loaded; empty if there are none."""
    return "".join(f". The recipe package {problem}" for problem in installed().broken)


# Parts


def parts(role: str) -> list[str]:
    """Returns the names of all registered parts of a role, like "model", built-in ones first."""
    return [name for family in families() for name in family.parts.get(role, ())]


def reference_of(role: str, name: str) -> str | None:
    """Returns the "module:Class" of a part; None if none is registered under that name."""
    references = (family.parts.get(role, {}).get(name) for family in families())
    return next((reference for reference in references if reference), None)


def part_class(role: str, name: str) -> type[Any]:
    """Returns the class of a part.

    Args:
        role: Role of the part: model, data or optimizer; or recipe, if one class of a package is all of them.
        name: Its name, like "decoder".

    Raises:
        RecipeError: There is no such part, or its package cannot be loaded.
    """
    reference = reference_of(role, name)
    if reference is None:
        others = parts(role)
        hint = did_you_mean(name, others) or f": {role} is one of {names_in_words(others)}"
        raise RecipeError(f"there is no {role} called {name!r}{hint}{broken_packages()}")
    try:
        cls = resolved(reference)
    except Exception as problem:
        raise RecipeError(
            f"the {role} {name} is in {reference}, which cannot be loaded: {type(problem).__name__}: {problem}. Repair"
            " or reinstall its package"
        ) from problem
    if getattr(cls, "name", None) != name:
        raise RecipeError(f"{reference} is registered as the {role} {name!r}, and has no such `name`")
    return cls


def names_of(parts: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the registered name of each part except the length, by role; None for a class that is not registered."""
    names: dict[str, str | None] = {}
    for role, part in parts.items():
        cls = type(part)
        if role != "length":
            is_registered = reference_of(role, part.name) == f"{cls.__module__}:{cls.__qualname__}"
            names[role] = part.name if is_registered else None
    return names


def require_fitting(model: Model, data: Data) -> None:
    """Raises RecipeError, with the parts that would fit, if the model cannot read the data's examples."""
    if not issubclass(data.gives, model.reads):
        other_data = _fitting("data", lambda cls: issubclass(cls.gives, model.reads))
        other_models = _fitting("model", lambda cls: issubclass(data.gives, cls.reads))
        raise RecipeError(
            f"the model {model.name} reads {model.reads.kind}, and the data {data.name} gives {data.gives.kind}: take"
            f" {', or '.join(filter(None, [other_data, other_models])) or 'other parts'}"
        )


def _fitting(role: str, fits: Callable[[type[Any]], bool]) -> str:
    """Returns the names of parts that fit, like "data=text or packed"; an empty string if there are none.

    Parts of a package that cannot be loaded are left out.
    """
    names = []
    for name in parts(role):
        with suppress(RecipeError):
            if fits(part_class(role, name)):
                names.append(name)
    return f"{role}={' or '.join(names)}" if names else ""
