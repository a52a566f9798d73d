"""What becomes of each field of a published `config.json`: `fields.toml`, as tables by `model_type`. No JAX."""

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
"""Words of the table for None, and for the default of a size that has none."""


class Field(NamedTuple):
    """A row of a table."""

    kind: Literal["computed", "only", "no_effect"]
    value: Any
    """computed: what a configuration that leaves it out means; only: the one value that is computed."""


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
    """Version that the tables were made from."""
    programs: tuple[str, ...]
    """Beginnings of names of fields that other programs keep for themselves."""
    reasons: Mapping[str, str]
    """Field of a table to what a model has that sets it."""
    families: Mapping[str, Family]
    """By `model_type`. `gemma3` is the model that sees pictures, which holds a `gemma3_text`."""


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
