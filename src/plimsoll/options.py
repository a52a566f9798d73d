"""Options as fields of dataclasses: each field has type, bounds, default and help in one place.

Parser, help, shell completion, keyword arguments in Python and the pages of docs/ all read `options_of`. Types and
bounds are in the annotation, like `Annotated[int, Ge(1)]`, and are checked when the dataclass is created. Imports no
JAX and no NumPy.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import operator
import os
import sys
from abc import ABCMeta
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.units import parse_count


@dataclass(frozen=True)
class Interval:
    """Bounds of a number, as part of an annotation."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def holds(self, value: float) -> bool:
        """Returns True if a number is within all bounds. NaN never is."""
        bounds = {operator.ge: self.ge, operator.gt: self.gt, operator.le: self.le, operator.lt: self.lt}
        return all(compare(value, bound) for compare, bound in bounds.items() if bound is not None)

    @property
    def in_words(self) -> str:
        """The bounds in words, to follow "must be" in a message."""
        bounds = {"{:,} or more": self.ge, "above {:,}": self.gt, "at most {:,}": self.le, "below {:,}": self.lt}
        words = " and ".join(word.format(bound) for word, bound in bounds.items() if bound is not None)
        return words.replace("below inf", "finite")


def Ge(bound: float) -> Interval:
    """Returns an interval of numbers from `bound` on."""
    return Interval(ge=bound)


@dataclass(frozen=True)
class Metavar:
    """Placeholder for a value in help, like SIZE, as part of an annotation."""

    word: str


@dataclass(frozen=True)
class Argument(Metavar):
    """Placeholder for a value that is typed without a flag, like RUN."""


@dataclass(frozen=True)
class Text:
    """Help text of an option that several classes share. It is part of the field's annotation."""

    words: str


COUNTED = "count"
"""Annotation of a whole number that may be typed as 124M, 10k or 1.3B."""
IS_PATH = "path"
"""Annotation of a text that may name a file or a folder. The path of an existing one is made absolute."""

Count = Annotated[int, COUNTED]

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveCount = Annotated[Count, Ge(1)]
NonNegativeCount = Annotated[Count, Ge(0)]
PositiveFloat = Annotated[float, Interval(gt=0, lt=math.inf)]
NonNegativeFloat = Annotated[float, Interval(ge=0, lt=math.inf)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
"""Number from 0 to 1, inclusive."""
Share = Annotated[float, Interval(ge=0, lt=1)]
"""Number from 0, inclusive, to 1, exclusive."""

FilePath = Annotated[str, IS_PATH, Metavar("FILE")]
FolderPath = Annotated[str, IS_PATH, Metavar("FOLDER")]
Size = Annotated[str | float, Metavar("SIZE")]
"""Number of bytes, like 768MiB."""
Seconds = Annotated[str | float, Metavar("TIME")]
"""Time, like 90s or 3min; a bare number is seconds."""
Seed = Annotated[int, Interval(ge=0, le=2**63 - 1)]
Json = Annotated[bool, Text("Print one JSON object and nothing else.")]


@dataclass(frozen=True)
class Option:
    """One option."""

    name: str
    """Name in Python, with underscores. The flag has hyphens."""
    kind: Any
    """Type with its annotations, like `Annotated[int | None, Ge(1)]`."""
    default: Any
    """Default; `dataclasses.MISSING` for a required option."""
    group: str
    """Heading of the option in help."""
    owner: type = object
    """Class whose source has the option's help as a docstring below the field. Without one, the help is a `Text` in the
    annotations."""

    @property
    def text(self) -> str:
        """Help, on one line."""
        shared = "".join(note.words for note in notes_of(self.kind) if isinstance(note, Text))
        return texts_of(self.owner).get(self.name, shared)

    @property
    def metavar(self) -> str:
        """Placeholder for the value in help, like SIZE or {exact,mixed}; empty for a switch."""
        return metavar_of(self.kind)

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def is_argument(self) -> bool:
        """Whether the value is typed without a flag."""
        return any(isinstance(note, Argument) for note in notes_of(self.kind))

    @property
    def is_switch(self) -> bool:
        """Whether the option is typed as --name or --no-name, without a value."""
        return alternatives_of(self.kind) == (bool,)

    @property
    def is_list(self) -> bool:
        """Whether the option takes several values."""
        return any(get_origin(kind) is tuple for kind in alternatives_of(self.kind))

    @property
    def choices(self) -> tuple[Any, ...]:
        """Allowed values; empty if the option is not limited to some values."""
        return choices_of(self.kind)


class Named(ABCMeta):
    """Metaclass of classes with options. A misspelt option raises an error that suggests a similar name."""

    if not TYPE_CHECKING:  # seeing this, a type checker would not know the fields of the classes

        def __call__(cls, *args: Any, **options: Any) -> Any:
            try:
                return super().__call__(*args, **options)
            except TypeError:
                known = [field.name for field in dataclasses.fields(cls) if field.init]
                unknown = [name for name in options if name not in known]
                if not unknown:
                    raise
            hint = did_you_mean(unknown[0], known) or f"; it has {names_in_words(known)}"
            raise RecipeError(f"{cls.__name__} has no option {unknown[0]}{hint}")


@dataclass(frozen=True, kw_only=True)
class Options(metaclass=Named):
    """Base of all dataclasses whose fields are options: of commands, recipes and data sets.

    A field with `metadata={"option": False}` is no option.
    """

    group: ClassVar[str] = "options"
    """Heading, in help, of the fields that this class defines and its base classes do not."""

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for field in fields_of(type(self)):
            value = checked(getattr(self, field.name), hints[field.name], flag=flag_of(field.name))
            object.__setattr__(self, field.name, value)
        self.check_options()

    def check_options(self) -> None:
        """Raises RecipeError for options that conflict. Subclasses override it."""


@dataclass(frozen=True, kw_only=True)
class Part(Options):
    """Options of a recipe's model, data, optimizer or length. Their names are unique within a recipe."""

    name: ClassVar[str] = ""
    """Name of the part in recipe.json and on the command line, like "decoder"."""
    gives_way: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Conflicting options: a map from an option to other options of this part and their values. If a user gives the
    option, the others are reset to these values."""


def flag_of(name: str) -> str:
    """Returns the flag of an option on the command line."""
    return f"--{name.replace('_', '-')}"


def options_of(settings: Any) -> tuple[Option, ...]:
    """Returns the options of a dataclass, or of an instance, whose values are then the defaults."""
    kind = settings if isinstance(settings, type) else type(settings)
    hints = hints_of(kind)
    rows = []
    for field in fields_of(kind):
        default = default_of(field) if settings is kind else getattr(settings, field.name)
        group = group_of(kind, field.name)
        rows.append(Option(name=field.name, kind=hints[field.name], default=default, owner=kind, group=group))
    return tuple(rows)


def fields_of(kind: type) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that are options."""
    return [field for field in dataclasses.fields(kind) if field.init and field.metadata.get("option", True)]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def group_of(kind: type, name: str) -> str:
    """Returns the heading of an option in help: `group` of the most basic class that declares it, else of `kind`."""
    owners = [owner for owner in kind.__mro__ if name in inspect.get_annotations(owner)]
    group = getattr(owners[-1], "group", Options.group)
    if group != Options.group:
        return group
    return getattr(kind, "group", group)


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Returns the types of a dataclass's fields, with their annotations.

    Raises:
        RecipeError: An annotation has a name that its module lacks.
    """
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as problem:
        raise RecipeError(
            f"the options of {kind.__qualname__} cannot be read: {problem} ({kind.__module__}). Import it where the"
            " module begins, not for type checkers alone"
        ) from None


# Texts


@cache
def texts_of(kind: type) -> dict[str, str]:
    """Returns the help of a dataclass's options: docstrings below fields. A subclass's replace its base's."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if dataclasses.is_dataclass(owner):
            module = sys.modules.get(owner.__module__)
            texts |= texts_of_file(getattr(module, "__file__", None) or "").get(owner.__name__, {})
    return texts


@cache
def texts_of_file(path: str) -> dict[str, dict[str, str]]:
    """Returns the docstrings of fields in a file, by class and field; none if there is no file, as in a notebook."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError):  # the file may have changed since it was imported
        return {}
    return {node.name: dict(_texts_in_class(node)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _texts_in_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


# Types


def notes_of(hint: Any) -> tuple[Any, ...]:
    """Returns the annotations of a type, including those inside a union."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return (*notes_of(kind), *notes)
    if get_origin(hint) in (Union, UnionType):
        return tuple(note for part in get_args(hint) for note in notes_of(part))
    return ()


def alternatives_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types in a union, without annotations, or a tuple of the type itself. NoneType stands for None."""
    if get_origin(hint) is Annotated:
        return alternatives_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in alternatives_of(part))
    return (hint,)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Returns the values of the Literals in a type."""
    literals = [kind for kind in alternatives_of(hint) if get_origin(kind) is Literal]
    return tuple(value for literal in literals for value in get_args(literal))


def metavar_of(hint: Any) -> str:
    """Returns the placeholder for a value in help; empty for a switch."""
    for note in notes_of(hint):
        if isinstance(note, Metavar):
            return note.word
    if choices := choices_of(hint):
        return f"{{{','.join(map(str, choices))}}}"
    kinds = alternatives_of(hint)
    if bool in kinds:
        return "{True,False}" if NoneType in kinds else ""
    if get_origin(kinds[0]) is tuple:
        return f"{metavar_of(get_args(kinds[0])[0])} ..."
    return {int: "N", float: "X"}.get(kinds[0], "NAME")


def checked(value: Any, hint: Any, *, flag: str) -> Any:
    """Returns the checked value of an option.

    Numbers become Python's own, since JSON has no NumPy numbers. Paths of existing files become absolute, since a run
    may be continued from another folder.

    Args:
        value: The given value. A count may be a text like "5M". None is within all bounds.
        hint: Type of the option, with its annotations.
        flag: Name of the option, for messages.

    Raises:
        RecipeError: The value has another type, or is out of bounds.
    """
    if isinstance(value, str) and COUNTED in notes_of(hint):
        value = _count_of(value, flag=flag)
    plain = MISSING
    for kind in alternatives_of(hint):
        plain = _as(value, kind)
        if plain is not MISSING:
            break
    if plain is MISSING:
        raise RecipeError(f"{flag} must be {_in_words(hint)}, got {value!r}")
    for note in notes_of(hint):
        if isinstance(note, Interval) and plain is not None and not note.holds(plain):
            shown = f"{plain:g}" if isinstance(plain, float) else f"{plain:,}"
            raise RecipeError(f"{flag} must be {note.in_words}, got {shown}")
    return _absolute(plain) if plain and IS_PATH in notes_of(hint) else plain


def _as(value: Any, kind: Any) -> Any:
    """Returns a value converted to the type `kind`; MISSING if it does not have this type.

    If `kind` is no type of an option, the value is returned unchanged.
    """
    if get_origin(kind) is tuple:
        return _as_tuple(value, get_args(kind)[0])
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if choice == value), MISSING)
    if kind in (int, float):
        return _as_number(value, kind)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if kind in (str, bool, NoneType):
        return value if isinstance(value, kind) else MISSING
    return value


def _as_tuple(value: Any, kind: Any) -> Any:
    if not isinstance(value, list | tuple):
        return MISSING
    values = tuple(_as(item, kind) for item in value)
    return MISSING if MISSING in values else values


def _as_number(value: Any, kind: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        return MISSING
    return int(value) if isinstance(value, Integral) else float(value)


def _in_words(hint: Any) -> str:
    """Returns a type in words, to follow "must be" in a message."""
    if choices := choices_of(hint):
        return f"one of {', '.join(map(str, choices))}"
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    return " or ".join(words.get(kind, "a list") for kind in alternatives_of(hint) if kind is not NoneType)


def _absolute(name: str) -> str:
    """Returns the absolute path of an existing file or folder, and any other name unchanged."""
    try:
        path = Path(name).expanduser()
        return str(path.absolute()) if path.exists() else name
    except (RuntimeError, OSError):  # an unknown user or a too long name: opening the file raises the error
        return name


# Words


def value_of(option: Option, word: str) -> Any:
    """Converts a word from the command line to the option's value: a count like 5M, None, True, a choice, or a number.

    Raises:
        RecipeError: The option cannot have this value.
    """
    kinds = alternatives_of(option.kind)
    if NoneType in kinds and word == "None":
        return None
    if COUNTED in notes_of(option.kind):
        return _count_of(word, flag=option.flag)
    for kind in kinds:
        value = _read_as(word, get_args(kind)[0] if get_origin(kind) is tuple else kind)
        if value is not MISSING:
            return value
    raise RecipeError(f"{option.flag} takes {_in_words(option.kind)}, got {word!r}")


def _read_as(word: str, kind: Any) -> Any:
    """Converts a word from the command line to the type `kind`; returns MISSING if that is impossible."""
    if kind is bool:
        return {"true": True, "false": False}.get(word.lower(), MISSING)
    if kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            return MISSING
    return word if kind is str else {str(choice): choice for choice in choices_of(kind)}.get(word, MISSING)


def _count_of(word: str, *, flag: str) -> int:
    if word.lstrip("-").isdecimal():
        return int(word)  # the bounds refuse a negative number
    try:
        return parse_count(word)
    except RecipeError as problem:
        raise RecipeError(f"{flag}: {problem}") from None
