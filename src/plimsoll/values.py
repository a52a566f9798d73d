"""Conversion of values to JSON and back. A dataclass becomes an object, and is read by the types of its fields.

A value of the wrong type raises an error with its path, like `plan.json.phases.train is '2'`. A class that needs
another form in JSON defines `to_dict` and `from_dict`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def to_json(value: Any) -> Any:
    """Returns a value in the form that `json.dumps` takes."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, Mapping):
        return {name: to_json(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    return value


def fields_to_json(value: Any) -> dict[str, Any]:
    """Returns a dict from the fields of a dataclass to their values, in the form that `json.dumps` takes."""
    return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}


def from_json(kind: type[Kind], value: Any, path: str) -> Kind:
    """Converts a value from JSON to a type.

    Args:
        kind: The type: a dataclass, a plain type, a Literal, or a union with None, a tuple or a mapping of these.
        value: Value from JSON.
        path: Path of the value in the file, for error messages.

    Raises:
        TypeError: The value does not have the type.
    """
    if hasattr(kind, "from_dict"):
        return kind.from_dict(value, path)  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(kind):
        return fields_from_json(kind, value, path)

    # A union: the value is None, or is converted to the other type.
    origin, kinds = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (other,) = set(kinds) - {NoneType}
        return None if value is None else from_json(other, value, path)  # type: ignore[return-value]

    # A mapping or a tuple: convert each of its values.
    if origin in (Mapping, dict) and isinstance(value, Mapping):
        return {name: from_json(kinds[1], part, f"{path}.{name}") for name, part in value.items()}  # type: ignore
    if origin in (tuple, Sequence) and isinstance(value, list | tuple):
        return _items(kinds, value, path)  # type: ignore[return-value]

    # A plain value: check its type.
    if not _is_of(kind, value):
        raise TypeError(f"{path} is {value!r}")
    return value


def _items(kinds: Sequence[Any], values: Sequence[Any], path: str) -> tuple[Any, ...]:
    """Converts the items of a tuple. A single type, or a type and an ellipsis, is the type of all items."""
    if len(kinds) == 1 or Ellipsis in kinds:
        kinds = [kinds[0]] * len(values)
    if len(kinds) != len(values):
        raise TypeError(f"{path} has {len(values)} values instead of {len(kinds)}")
    return tuple(from_json(kind, values[place], f"{path}[{place}]") for place, kind in enumerate(kinds))


def fields_from_json(kind: type[Kind], value: Any, path: str) -> Kind:
    """Returns a dataclass from a JSON object with its fields. Other names are ignored: they are derived values.

    Raises:
        TypeError: A field is missing or has another type.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{path} is {value!r}")

    read: dict[str, Any] = {}
    for name, (hint, is_required) in _fields(kind).items():
        if name in value:
            read[name] = from_json(hint, value[name], f"{path}.{name}")
        elif is_required:
            raise TypeError(f"{path}.{name} is missing")
    return kind(**read)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Returns a dict from each field to its type and a boolean, which is True for a field without a default."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name: (hints[field.name], field.default is field.default_factory is missing) for field in fields}


def _is_of(kind: Any, value: Any) -> bool:
    """Returns True if a value has the plain type `kind`, or is a choice of the Literal `kind`.

    True does not count as 1, but an int counts as a float."""
    if get_origin(kind) is Literal:
        choices = [(type(choice), choice) for choice in get_args(kind)]
        return (type(value), value) in choices
    is_whole_float = kind is float and type(value) is int
    return is_whole_float or kind in (Any, type(value))
