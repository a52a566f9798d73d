"""Options once: a field of a dataclass with its type, bounds, default and docstring is one row for every reader.

The parser, help, completion, Python's keywords and the pages all read `options_of`. Types and bounds stand in the
annotation, like `Annotated[int, Ge(1)]`, and are checked where the dataclass is made. Imports no JAX and no NumPy.
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
from collections.abc import Iterator, Mapping, Sequence
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


def Ge(bound: float) -> Interval:
    """Returns the bound of numbers that are this or more."""
    return Interval(ge=bound)


@dataclass(frozen=True)
class Metavar:
    """Word for a value in help, like SIZE, as part of an annotation."""

    word: str


@dataclass(frozen=True)
class Argument(Metavar):
    """The same for a value that is typed without a flag, like RUN."""


@dataclass(frozen=True)
class Text:
    """Help of an option that several classes have, as part of an annotation."""

    words: str


COUNTED = "count"
"""Part of an annotation: a whole number that may be typed as 124M, 10k or 1.3B."""
IS_PATH = "path"
"""Part of an annotation: a text that may name a file or a folder, which is then made absolute."""

Count = Annotated[int, COUNTED]

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveCount = Annotated[Count, Ge(1)]
NonNegativeCount = Annotated[Count, Ge(0)]
PositiveFloat = Annotated[float, Interval(gt=0, lt=math.inf)]
NonNegativeFloat = Annotated[float, Interval(ge=0, lt=math.inf)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
"""From 0 to 1, both among them."""
Share = Annotated[float, Interval(ge=0, lt=1)]
"""From 0 to below 1."""

FilePath = Annotated[str, IS_PATH, Metavar("FILE")]
FolderPath = Annotated[str, IS_PATH, Metavar("FOLDER")]
Size = Annotated[str | float, Metavar("SIZE")]
"""Bytes, like 768MiB."""
Seconds = Annotated[str | float, Metavar("TIME")]
"""A time, like 90s or 3min."""
Seed = Annotated[int, Interval(ge=0, lt=2**63)]
Json = Annotated[bool, Text("Print one JSON object and nothing else.")]


@dataclass(frozen=True)
class Option:
    """One option, as every reader of options takes it."""

    name: str
    """Name in Python; the flag has hyphens in it."""
    kind: Any
    """Type with its annotations, like `Annotated[int | None, Ge(1)]`."""
    default: Any
    """Value where it is left out; `dataclasses.MISSING` where it has to be given."""
    text: str
    """Help, on one line."""
    group: str
    """Heading of help under which it stands."""
    metavar: str
    """Word for its value, like SIZE or {exact,mixed}; empty for a switch."""

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def is_argument(self) -> bool:
        """Whether its value is typed without a flag."""
        return any(isinstance(note, Argument) for note in notes_of(self.kind))

    @property
    def is_switch(self) -> bool:
        """Whether it is typed as --name or --no-name, without a value."""
        return alternatives_of(self.kind) == (bool,)

    @property
    def is_list(self) -> bool:
        """Whether several values stand behind it."""
        return any(get_origin(kind) is tuple for kind in alternatives_of(self.kind))

    @property
    def choices(self) -> tuple[Any, ...]:
        """Values of which one is taken; empty where any value of its type is."""
        values = [value for kind in alternatives_of(self.kind) for value in choices_of(kind)]
        return tuple(values)


class Named(ABCMeta):
    """Class of classes with options: a misspelt one is answered with the one that was meant."""

    if not TYPE_CHECKING:  # a type checker would forget what a class's own fields are

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
    """Base of every dataclass whose fields are options: of commands, of recipes, of data sets.

    A field with `metadata={"option": False}` is none.
    """

    group: ClassVar[str] = "options"
    """Heading of help under which the fields stand that this class is the first to have."""

    def __post_init__(self) -> None:
        require_types(self)
        require_bounds(self)
        make_absolute(self)
        self.check_options()

    def check_options(self) -> None:
        """Raises RecipeError for options that contradict one another. Nothing by default."""


def flag_of(name: str) -> str:
    """Returns the command line's name of an option."""
    return f"--{name.replace('_', '-')}"


def options_of(settings: Any) -> tuple[Option, ...]:
    """Returns the options of a dataclass, or of an object of one, whose values are then the defaults."""
    kind = settings if isinstance(settings, type) else type(settings)
    hints, texts = hints_of(kind), texts_of(kind)
    rows = []
    for field in fields_of(kind):
        default = default_of(field) if settings is kind else getattr(settings, field.name)
        hint = hints[field.name]
        shared = "".join(note.words for note in notes_of(hint) if isinstance(note, Text))
        rows.append(
            Option(
                name=field.name,
                kind=hint,
                default=default,
                text=texts.get(field.name, shared),
                group=group_of(kind, field.name),
                metavar=metavar_of(hint),
            )
        )
    return tuple(rows)


def fields_of(kind: type) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass that are options."""
    return [field for field in dataclasses.fields(kind) if field.init and field.metadata.get("option", True)]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def group_of(kind: type, name: str) -> str:
    """Returns the heading of an option: that of the first class that has it."""
    owners = [owner for owner in kind.__mro__ if name in inspect.get_annotations(owner)]
    return getattr(owners[-1], "group", Options.group)


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


def texts_of(kind: type) -> dict[str, str]:
    """Returns the help of a dataclass's options: the docstrings below the fields, its own before those it inherits."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if dataclasses.is_dataclass(owner):
            texts |= texts_of_file(source_of(owner)).get(owner.__qualname__, {})
    return texts


def source_of(kind: type) -> str:
    """Returns the file that a class stands in; empty for one that was typed into a notebook."""
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ""


@cache
def texts_of_file(path: str) -> dict[str, dict[str, str]]:
    """Returns the docstrings of fields in a file, by class and field."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError):  # a notebook's cell, or a file that has changed since it was imported
        return {}
    return dict(_texts_by_class(tree, outer=""))


def _texts_by_class(tree: ast.AST, *, outer: str) -> Iterator[tuple[str, dict[str, str]]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield from _texts_by_class(node, outer=f"{outer}{node.name}.<locals>.")
        if not isinstance(node, ast.ClassDef):
            continue
        yield f"{outer}{node.name}", dict(_texts_in_class(node))
        yield from _texts_by_class(node, outer=f"{outer}{node.name}.")


def _texts_in_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield field.target.id, " ".join(text.split())


# Types


def notes_of(hint: Any) -> tuple[Any, ...]:
    """Returns everything that annotates a type, inside of a union, too."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return (*notes_of(kind), *notes)
    if get_origin(hint) in (Union, UnionType):
        return tuple(note for part in get_args(hint) for note in notes_of(part))
    return ()


def alternatives_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types of which a value has one, without their annotations; NoneType among them if None is one."""
    if get_origin(hint) is Annotated:
        return alternatives_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in alternatives_of(part))
    return (hint,)


def choices_of(kind: Any) -> tuple[Any, ...]:
    """Returns the values of a Literal; empty for another type."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def metavar_of(hint: Any) -> str:
    """Returns the word for a value in help; empty for a switch."""
    for note in notes_of(hint):
        if isinstance(note, Metavar):
            return note.word
    kinds = [kind for kind in alternatives_of(hint) if kind is not NoneType]
    choices = [str(value) for kind in kinds for value in choices_of(kind)]
    if choices:
        return f"{{{','.join(choices)}}}"
    if kinds == [bool]:
        return "" if NoneType not in alternatives_of(hint) else "{True,False}"
    if get_origin(kinds[0]) is tuple:
        return f"{metavar_of(get_args(kinds[0])[0])} ..."
    return {int: "N", float: "X"}.get(kinds[0], "NAME")


def require_types(options: Any) -> None:
    """Raises RecipeError where a field has a value of another type. Numbers and paths become Python's own.

    JSON has none of NumPy's numbers. A field of a type that no option can have is left alone.
    """
    hints = hints_of(type(options))
    for field in fields_of(type(options)):
        value = getattr(options, field.name)
        kinds = alternatives_of(hints[field.name])
        if not all(_is_checked(kind) for kind in kinds):
            continue
        plain = _as_any_of(value, kinds)
        if plain is MISSING:
            raise RecipeError(f"{flag_of(field.name)} must be {_kinds_in_words(kinds)}, got {value!r}")
        if plain is not value:
            object.__setattr__(options, field.name, plain)


def _is_checked(kind: Any) -> bool:
    """Returns whether a type is one that options have."""
    if get_origin(kind) is tuple:
        return _is_checked(get_args(kind)[0])
    return kind in (NoneType, bool, int, float, str) or bool(choices_of(kind))


def _as_any_of(value: Any, kinds: Sequence[Any]) -> Any:
    """Returns the value in the first type that it has; MISSING if it has none of them."""
    for kind in kinds:
        plain = _as(value, kind)
        if plain is not MISSING:
            return plain
    return MISSING


def _as(value: Any, kind: Any) -> Any:
    """Returns a value as one of a type, in Python's own class; MISSING if it is none."""
    if get_origin(kind) is tuple:
        return _as_tuple(value, get_args(kind)[0])
    if choices_of(kind):
        equal = [choice for choice in choices_of(kind) if type(choice) is type(value) and choice == value]
        return equal[0] if equal else MISSING
    if kind in (int, float):
        return _as_number(value, kind)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, kind) else MISSING


def _as_tuple(value: Any, kind: Any) -> Any:
    if not isinstance(value, list | tuple):
        return MISSING
    values = tuple(_as(item, kind) for item in value)
    return MISSING if MISSING in values else values


def _as_number(value: Any, kind: Any) -> Any:
    is_number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if not is_number:
        return MISSING
    if isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _kinds_in_words(kinds: Sequence[Any]) -> str:
    choices = [str(value) for kind in kinds for value in choices_of(kind)]
    if choices:
        return f"one of {', '.join(choices)}"
    words = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    return " or ".join(words.get(kind, "a list") for kind in kinds if kind is not NoneType)


def make_absolute(options: Any) -> None:
    """Makes names of files and folders absolute, where there is one: a run is continued from elsewhere, too."""
    hints = hints_of(type(options))
    for field in fields_of(type(options)):
        value = getattr(options, field.name)
        if not value or IS_PATH not in notes_of(hints[field.name]):
            continue
        try:
            path = Path(value).expanduser()
            is_here = path.exists()
        except (RuntimeError, OSError):  # no such user, or longer than a name may be: who opens it refuses it
            continue
        if is_here:
            object.__setattr__(options, field.name, str(path.absolute()))


# Bounds


def require_bounds(options: Any) -> None:
    """Raises RecipeError where a field with bounds is no number, or one outside of the bounds that its annotation has.

    None is inside of all bounds, and NaN of none.

    Args:
        options: An object of a dataclass; its fields are called in the message as options are, like `--batch-size`.
    """
    for name, bounds in _bounds(type(options)).items():
        value = getattr(options, name)
        if not isinstance(value, Real | None):
            raise RecipeError(f"{flag_of(name)} must be a number, {_bounds_in_words(**bounds)}, got {value!r}")
        if value is not None and not all(getattr(operator, sign)(value, bound) for sign, bound in bounds.items()):
            shown = f"{value:g}" if isinstance(value, float) else f"{value:,}"
            raise RecipeError(f"{flag_of(name)} must be {_bounds_in_words(**bounds)}, got {shown}")


@cache
def _bounds(kind: type) -> dict[str, dict[str, float]]:
    """Returns the bounds of each field that has any, by the names of `operator`'s comparisons: `{"ge": 0, "lt": 1}`."""
    bounds: dict[str, dict[str, float]] = {}
    for field in dataclasses.fields(kind):
        for note in notes_of(hints_of(kind)[field.name]):
            if isinstance(note, Interval):
                signs = {sign: bound for sign, bound in dataclasses.asdict(note).items() if bound is not None}
                bounds[field.name] = bounds.get(field.name, {}) | signs
    return bounds


def _bounds_in_words(
    *, ge: float | None = None, gt: float | None = None, le: float | None = None, lt: float | None = None
) -> str:
    """Returns bounds as they stand after "must be"; one of them is a lower bound."""
    lowest = f"{ge:,} or more" if gt is None else f"above {gt:,}"
    if le is None and lt is None:
        return lowest
    if lt == math.inf:
        return f"{lowest} and finite"
    if lt == 2**63:
        return f"a whole number from {ge} to 2^63 - 1"
    if gt is not None:
        return f"{lowest} and at most {le:,}" if lt is None else f"{lowest} and below {lt:,}"
    return f"from {ge:,} to {le:,}" if lt is None else f"from {ge:,} to below {lt:,}"


# Words


def value_of(option: Option, word: str) -> Any:
    """Returns the value that a word means for an option: 5M of a count, None, True, a choice, a number.

    Raises:
        RecipeError: The word is no such value.
    """
    kinds = alternatives_of(option.kind)
    if NoneType in kinds and word == "None":
        return None
    if COUNTED in notes_of(option.kind):
        return _count_of(option, word)
    for kind in kinds:
        value = _read_as(word, get_args(kind)[0] if get_origin(kind) is tuple else kind)
        if value is not MISSING:
            return value
    if option.choices:
        known = sorted(str(choice) for choice in option.choices)
        raise RecipeError(f"{option.flag} takes one of {', '.join(known)}, got {word!r}")
    raise RecipeError(f"{option.flag} takes {_kinds_in_words(kinds)}, got {word!r}")


def _read_as(word: str, kind: Any) -> Any:
    """Returns a word as a value of a type; MISSING if it is none."""
    if kind is bool:
        return {"true": True, "false": False}.get(word.lower(), MISSING)
    if kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            return MISSING
    if kind is str:
        return word
    return {str(choice): choice for choice in choices_of(kind)}.get(word, MISSING)


def _count_of(option: Option, word: str) -> int:
    try:
        return int(word)  # a negative one is refused by its bounds
    except ValueError:
        pass
    try:
        return parse_count(word)
    except RecipeError as problem:
        raise RecipeError(f"{option.flag}: {problem}") from None
