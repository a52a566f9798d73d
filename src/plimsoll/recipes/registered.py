"""Parts, presets and data sets by name: the built-in folders, and packages of the entry point `plimsoll.recipes`.

Nothing is loaded here but what a name asks for. Built-in names are found without looking at what is installed, and a
package cannot take them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.optimizers.settings import Optimizer
from plimsoll.recipes.family import Family, Preparation, Preset
from plimsoll.recipes.parts import Data, Model
from plimsoll.recipes.verbs import resolved

GROUP = "plimsoll.recipes"
"""Entry points of packages with recipes: name = "module:FAMILY"."""
BUILT_IN = {
    name: f"plimsoll.recipes.{name}.family:FAMILY"
    for name in ("text", "control", "puzzles", "longcontext", "recommend", "finetune")
}
"""Written as a package writes its entry point. They stand here and not in the package's metadata, because the metadata
of a checkout may be older than its source."""
OPTIMIZERS = {
    "adamw": "plimsoll.optimizers.adamw:AdamW",
    "adam-atan2": "plimsoll.optimizers.adam_atan2:AdamATan2",
    "muon": "plimsoll.optimizers.muon:Muon",
    "lion": "plimsoll.optimizers.lion:Lion",
}
"""Parts that belong to no family."""
ROLES: Mapping[str, type] = {"model": Model, "data": Data, "optimizer": Optimizer}


def _family(reference: str) -> Family:
    family = resolved(reference)
    if not isinstance(family, Family):
        raise TypeError(f"{reference} is a {type(family).__name__} and no plimsoll.recipes.family.Family")
    return family


def read_presets(path: Path) -> dict[str, Preset]:
    """Returns the presets of a TOML file by name, each with what it takes from another by `like`."""
    described = set(Preset._fields)
    tables: dict[str, dict[str, Any]] = {}
    presets = {}
    for name, own in tomllib.loads(path.read_text("utf-8")).items():
        table = tables.get(own.pop("like", ""), {}) | own
        tables[name] = table
        presets[name] = Preset(
            purpose=table["purpose"],
            parts=table["parts"],
            options={option: value for option, value in table.items() if option not in described},
            example=table["example"],
            often=tuple(table["often"]),
        )
    return presets


FAMILIES = {name: _family(reference) for name, reference in BUILT_IN.items()}
PRESETS = read_presets(Path(__file__).with_name("presets.toml"))
PARTS: dict[str, str] = OPTIMIZERS | {name: cls for family in FAMILIES.values() for name, cls in family.parts.items()}
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
    taken = {*PRESETS, *PARTS, *(name for family in FAMILIES.values() for name in family.prepares)}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = f" (package {entry.dist.name} {entry.dist.version})" if entry.dist is not None else ""
        name = f"{entry.name}{package}"
        try:
            family = _family(entry.value)
            names = {*family.presets, *family.parts, *family.kinds, *family.prepares}
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
    return PRESETS | {
        name: preset for family in installed().families.values() for name, preset in family.presets.items()
    }


def record_of(name: str) -> Preset | None:
    """Returns the record of a preset; None for the name of a file."""
    return PRESETS.get(name) or presets().get(name)  # built-in ones are found without looking at packages


def preparations() -> dict[str, Preparation]:
    """Returns every data set that `plimsoll prepare` makes, by its name."""
    return {name: preparation for family in families() for name, preparation in family.prepares.items()}


def broken_packages() -> str:
    """Returns a clause that names packages whose recipes could not be loaded; empty if there are none."""
    return "".join(f". The recipe package {problem}" for problem in installed().broken)


# Parts


def parts() -> dict[str, str]:
    """Returns the reference of every part by its name, built-in ones first."""
    return PARTS | {name: cls for family in installed().families.values() for name, cls in family.parts.items()}


def part_class(role: str, name: str) -> type[Any]:
    """Returns the class of a part.

    Args:
        role: What it is in a recipe: model, data or optimizer.
        name: Its name, like "decoder".

    Raises:
        RecipeError: There is no such part, its package cannot be loaded, or it is a part of another role.
    """
    known = PARTS if name in PARTS else parts()
    if name not in known:
        others = of_role(role)
        hint = did_you_mean(name, others) or f": {role} is one of {names_in_words(others)}"
        raise RecipeError(f"there is no part called {name!r}{hint}{broken_packages()}")
    cls = loaded(known[name], what=f"the part {name}")
    if not (isinstance(cls, type) and issubclass(cls, ROLES[role]) and cls.name == name):
        raise RecipeError(
            f"{name} ({known[name]}) is no {role} of that name: {role} is one of {names_in_words(of_role(role))}"
        )
    return cls


def loaded(reference: str, *, what: str) -> Any:
    """Returns what a registered reference names. Raises RecipeError where its package cannot be loaded."""
    if reference.startswith("plimsoll."):
        return resolved(reference)
    try:
        return resolved(reference)
    except Exception as problem:
        raise RecipeError(
            f"{what} is in {reference}, which cannot be loaded: {type(problem).__name__}: {problem}. Repair or"
            " reinstall its package"
        ) from problem


def of_role(role: str) -> list[str]:
    """Returns the names of the parts of one role, without those of a package that cannot be loaded."""
    names = []
    for name, reference in parts().items():
        with suppress(RecipeError):
            if issubclass(loaded(reference, what=f"the part {name}"), ROLES[role]):
                names.append(name)
    return names


def name_of_part(part: object) -> str | None:
    """Returns the registered name of a part; None where its class is registered nowhere."""
    cls = type(part)
    name = getattr(cls, "name", "")
    known = PARTS if name in PARTS else parts()
    return name if known.get(name) == f"{cls.__module__}:{cls.__qualname__}" else None


def require_fitting(model: Model, data: Data) -> None:
    """Raises RecipeError, with the parts that would fit, where parts do not go together."""
    if not issubclass(data.gives, model.reads):
        fitting = [name for name in of_role("data") if issubclass(part_class("data", name).gives, model.reads)]
        others = [name for name in of_role("model") if issubclass(data.gives, part_class("model", name).reads)]
        raise RecipeError(
            f"the model {model.name} reads {model.reads.in_words}, and the data {data.name} gives"
            f" {data.gives.in_words}: take data={' or '.join(fitting)}, or model={' or '.join(others)}"
        )
