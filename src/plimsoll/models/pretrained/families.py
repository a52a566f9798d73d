"""Reads `fields.toml`, which states for each `model_type` how fields of `config.json` are used. Imports no JAX."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from plimsoll.models.shape import Architecture

TABLE = Path(__file__).with_name("fields.toml")
WITHOUT_DEFAULT = ("null", "required")
"""Values in `fields.toml` that are read as None: "null", and "required" for a field without a default."""


class Field(NamedTuple):
    """How a field of `config.json` is used."""

    kind: Literal["computed", "only", "no_effect"]
    value: Any
    """The default if `kind` is "computed"; the one supported value if it is "only"; None if it is "no_effect"."""


@dataclass(frozen=True)
class Family:
    """Fields of the configurations of one `model_type`."""

    model_type: str
    config_class: str
    """Class in transformers."""
    architecture: Architecture
    fields: Mapping[str, Field]


class Tables(NamedTuple):
    transformers: str
    """Version of transformers that the tables were made from."""
    programs: tuple[str, ...]
    """Prefixes of fields that other programs write for their own use."""
    reasons: Mapping[str, str]
    """Text that names the unsupported part of a model, by the field that turns it on."""
    families: Mapping[str, Family]
    """Families by `model_type`. A `gemma3` sees pictures; its language model is a `gemma3_text`."""


@cache
def tables() -> Tables:
    """Returns the tables of `fields.toml`."""
    document = tomllib.loads(TABLE.read_text("utf-8"))
    version, programs, reasons = (document.pop(name) for name in ("transformers", "programs", "reasons"))
    families = {
        name: Family(name, table["class"], cast(Architecture, table.get("architecture", name)), _fields(name, document))
        for name, table in document.items()
        if "class" in table
    }
    return Tables(version, tuple(programs), reasons, families)


def _fields(name: str, document: Mapping[str, Any]) -> dict[str, Field]:
    table = document[name]
    fields = _fields(table["like"], document) if "like" in table else {}
    fields |= {field: Field("no_effect", None) for field in table.get("no_effect", ())}
    for kind in ("computed", "only"):
        values = table.get(kind, {}).items()
        fields |= {field: Field(kind, None if value in WITHOUT_DEFAULT else value) for field, value in values}
    return fields
