"""How recipes are registered: one `Family` names parts, presets, and data sets.

What is built in is described in `built_in.toml` and `presets.toml`. A package of anybody's names its own `Family` in
the entry point group `plimsoll.recipes` (docs/your-own.md). A family holds text only, so that listing recipes imports
no recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Preset(NamedTuple):
    """One complete recipe by its name: its parts and options, and a line about it."""

    purpose: str
    """Line of `plimsoll recipes`."""
    parts: Mapping[str, str]
    """Names of its model, data and optimizer, like {"model": "decoder", "data": "text", "optimizer": "adamw"}; or of
    the one class that has all of them, like {"recipe": "waves"}."""
    options: Mapping[str, Any] = {}
    """Options that differ from the defaults of the parts."""
    example: str = ""
    """Options with which `plimsoll train NAME` runs, for its help: those without which it does not, and --memory."""
    often: tuple[str, ...] = ()
    """Options of the recipe, and levers, that are used most, in the order of `-h`: at least seven are shown."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Data set that `plimsoll prepare NAME` makes."""

    purpose: str
    """Line of `plimsoll prepare --help`."""
    options: str
    """"module:Class": a dataclass. Its fields are the options, and their docstrings the help; one of them is `out`."""
    make: str
    """`function(options) -> dict`: makes the data set, says on standard error what it does, and returns the answer."""
    text: str
    """`function(answer) -> str`: what is printed without --json."""
    example: str
    """A command, shown in `--help`."""
    own_process: bool = False
    """Made in a process of its own, whose allocator keeps buffers of a few sizes (`environment.for_making`)."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Form of data set that `plimsoll inspect` recognises."""

    recognises: str
    """`function(path) -> bool`."""
    describe: str
    """`function(path) -> dict`: what `inspect --json` prints."""
    table: str
    """`function(description) -> str`."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Package of recipes: all that plimsoll is told of it."""

    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By role (model, data, optimizer; recipe of an `OwnRecipe`): name in `recipe.json` to "module:Class", which has
    that `name`."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    prepares: Mapping[str, Preparation] = field(default_factory=dict)
    inspects: tuple[Inspection, ...] = ()

    @property
    def names(self) -> set[str]:
        """All names that it takes."""
        return {*self.presets, *self.prepares, *(name for names in self.parts.values() for name in names)}


def content_of(options: Any, kind: type[T]) -> T:
    """Returns the part of the options that the content of a data set follows from: those that `kind` has."""
    return kind(**{name.name: getattr(options, name.name) for name in fields(kind)})  # type: ignore[arg-type]
