"""Registration of recipes: a `Family` lists parts (models, data, optimizers), presets, and kinds of data sets.

`built_in.toml` and `presets.toml` describe the built-in family. Any package may name its own `Family` in the entry
point group `plimsoll.recipes` (docs/your-own.md). A family holds text only, so that listing recipes imports
no recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Preset(NamedTuple):
    """Complete recipe under a name: its parts, its options, and a line that describes it."""

    purpose: str
    """Line that describes the recipe in `plimsoll recipes`."""
    parts: Mapping[str, str]
    """Names of its model, data and optimizer, like {"model": "decoder", "data": "text", "optimizer": "adamw"}; or the
    name of one class for all three, like {"recipe": "waves"}."""
    options: Mapping[str, Any] = {}
    """Options that differ from the defaults of the parts."""
    example: str = ""
    """Example options for the help of `plimsoll train NAME`: the required options and --memory."""
    often: tuple[str, ...] = ()
    """Most used options and levers of the recipe, in the order of `-h`, which shows at least the first seven."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Kind of data set that `plimsoll prepare NAME` makes."""

    purpose: str
    """Line that describes the data set in `plimsoll prepare --help`."""
    options: str
    """"module:Class": a dataclass. Its fields are the options, and their docstrings the help; one of them is `out`."""
    make: str
    """`function(options) -> dict`: makes the data set, reports progress on standard error, and returns the answer that
    --json prints."""
    text: str
    """`function(answer) -> str`: the text that is printed without --json."""
    example: str
    """A command, shown in `--help`."""
    own_process: bool = False
    """True to use a separate process, whose allocator keeps freed buffers for reuse (`environment.for_making`)."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Kind of data set that `plimsoll inspect` recognises."""

    recognises: str
    """`function(path) -> bool`: True if the path holds such a data set."""
    describe: str
    """`function(path) -> dict`: the object that `inspect --json` prints."""
    table: str
    """`function(description) -> str`: the text of `inspect` without --json."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models, data, optimizers, presets, and kinds of data sets that a package registers."""

    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Classes as "module:Class", by role (model, data, optimizer; recipe for an `OwnRecipe`) and then by the class's
    attribute `name`, which a run's recipe.json holds."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    prepares: Mapping[str, Preparation] = field(default_factory=dict)
    inspects: tuple[Inspection, ...] = ()

    @property
    def names(self) -> set[str]:
        """All names that the family registers."""
        return {*self.presets, *self.prepares, *(name for names in self.parts.values() for name in names)}


def content_of(options: Any, kind: type[T]) -> T:
    """Returns a `kind` with its fields taken from `options`: those that determine the content of a data set."""
    return kind(**{name.name: getattr(options, name.name) for name in fields(kind)})  # type: ignore[arg-type]
