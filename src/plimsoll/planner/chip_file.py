"""A chip file: GPUs and families of TPU slices in TOML, read into plain figures.

A field that is missing, misspelt or of the wrong kind is refused in one paragraph that names file, chip and field.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError

PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
FIGURES = (
    "memory_bytes",
    "flops",
    "memory_bandwidth",
    "link_bandwidth",
    "host_link_bandwidth",
    "host_memory_bytes",
    "compiler",
)
"""Figures that have a source where they are given."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one device; the words are those of `chips.Chip`."""

    platform: str
    memory_bytes: int
    flops: Mapping[str, float]
    memory_bandwidth: float
    link_bandwidth: float
    """Rate to a neighbour; of a TPU, of one link, one way."""
    host_link_bandwidth: float
    host_memory_bytes: int | None
    compiler: Mapping[str, Any]
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One size of a family: chips along each axis, of the whole and of one host."""

    topology: tuple[int, ...]
    host: tuple[int, ...]
    host_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """TPU slices that differ in size alone. `sizes`: the number in the name to the slice."""

    figures: Figures
    counts: str
    """Unit of the number in the name."""
    devices_per_chip: int
    wraps_at: int
    """Axes wrap around where every one is a multiple of it."""
    sizes: Mapping[int, Slice]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All chips of a file."""

    architectures: Mapping[str, Mapping[str, int]]
    """CUDA compute capability to the limits of a multiprocessor."""
    chips: Mapping[str, Figures]
    families: Mapping[str, Family]


def read(path: Path, *, architectures: Mapping[str, Mapping[str, int]] | None = None) -> Catalogue:
    """Reads a file of chips. It may refer to `architectures`, those known already. Raises RecipeError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise RecipeError(f"the chip file {path} cannot be read: {problem}") from None
    except tomllib.TOMLDecodeError as problem:
        raise RecipeError(f"the chip file {path} is not TOML: {problem}") from None
    whole = _Table(document, str(path), "")
    own = {name: _architecture(table) for name, table in whole.tables("architectures")}
    known = {**(architectures or {}), **own}
    gpus = {name: _gpu(table, known) for name, table in whole.tables("chips")}
    families = {name: _family(table) for name, table in whole.tables("families")}
    whole.end()
    if "cpu" in gpus:
        raise RecipeError(
            f"the chip file {path}: [chips.cpu] would never be used, cpu is the machine at hand: its memory is what is"
            " free, its rates are measured. Give the chip another name"
        )
    return Catalogue(architectures=known, chips=gpus, families=families)


def _architecture(table: _Table) -> dict[str, int]:
    names = ("shared_memory_per_core", "shared_memory_per_block_optin", "threads_per_core_limit", "fpus_per_core")
    limits = {name: table.take(name, count) for name in names}
    table.end()
    return limits


def _gpu(table: _Table, architectures: Mapping[str, Mapping[str, int]]) -> Figures:
    table.take("platform", one_of("cuda"))
    options = table.table("compiler")
    compiler: dict[str, Any] = {"description": options.take("description", words)}
    compiler["compute_capability"] = options.take("compute_capability", one_of(*architectures))
    for name, kind in (
        ("core_count", count),
        ("clock_rate_ghz", rate),
        ("l2_cache_size", count),
        ("device_memory_size", count),
    ):
        compiler[name] = options.take(name, kind)
    options.end()
    compiler |= architectures[compiler["compute_capability"]]
    figures = _figures(table, platform="cuda", compiler=compiler)
    table.end()
    whole = compiler["device_memory_size"]
    if figures.memory_bytes > whole:
        raise table.refusal("memory_bytes", f"at most the {whole:,} of device_memory_size", figures.memory_bytes)
    return figures


def _family(table: _Table) -> Family:
    table.take("platform", one_of("tpu"))
    options = table.table("compiler")
    host = options.take("host", shape)
    compiler = {"generation": options.take("generation", words)}
    if chip_config := options.take("chip_config_name", words, default=None):
        compiler["chip_config_name"] = chip_config
    options.end()
    figures = _figures(table, platform="tpu", compiler=compiler)
    family = Family(
        figures=figures,
        counts=table.take("counts", words),
        devices_per_chip=table.take("devices_per_chip", count),
        wraps_at=table.take("wraps_at", count),
        sizes={
            size: _slice(each, host=host, memory=figures.host_memory_bytes) for size, each in table.numbered("sizes")
        },
    )
    table.end()
    for size, each in family.sizes.items():
        _require_links(table, family, size, chips=math.prod(each.topology))
    return family


def _require_links(table: _Table, family: Family, size: int, *, chips: int) -> None:
    """Raises RecipeError where a step would send at an unknown rate: only links between chips are described."""
    devices = chips * family.devices_per_chip
    if chips > 1 and not family.figures.link_bandwidth:
        raise table.refusal("link_bandwidth", f"{rate.__doc__}: size {size} has {devices} devices", None)
    if chips == 1 < devices:
        wanted = f"sizes of more than one chip: the link between its {devices} devices is not described"
        raise table.refusal(f"sizes.{size}", wanted, "one chip")


def _slice(table: _Table, *, host: tuple[int, ...], memory: int | None) -> Slice:
    size = Slice(
        topology=table.take("topology", shape),
        host=table.take("host", shape, default=host),
        host_memory_bytes=table.take("host_memory_bytes", count, default=memory),
    )
    table.end()
    if len(size.topology) != len(size.host) or any(t % h for t, h in zip(size.topology, size.host, strict=True)):
        raise table.refusal("topology", "whole hosts", "x".join(map(str, size.topology)))
    return size


def _figures(table: _Table, *, platform: str, compiler: Mapping[str, Any]) -> Figures:
    rates = table.table("flops")
    flops = {name: rates.take(name, rate, default=None) for name in PRECISIONS}
    rates.end()
    if flops["float32"] is None:
        raise rates.refusal("float32", rate.__doc__ or "", None)
    given = [name for name in FIGURES if name in table]
    sources = table.table("sources", default={})
    named = {name: sources.take(name, words, default=f"the file {table.path}") for name in given}
    sources.end()
    return Figures(
        platform=platform,
        memory_bytes=table.take("memory_bytes", count),
        flops={name: rate for name, rate in flops.items() if rate is not None},
        memory_bandwidth=table.take("memory_bandwidth", rate),
        link_bandwidth=table.take("link_bandwidth", rate, default=0.0),
        host_link_bandwidth=table.take("host_link_bandwidth", rate, default=0.0),
        host_memory_bytes=table.take("host_memory_bytes", count, default=None),
        compiler=compiler,
        sources=named,
    )


def count(value: Any) -> int:
    """a whole number above 0"""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError
    return value


def rate(value: Any) -> float:
    """a number above 0"""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError
    return float(value)


def words(value: Any) -> str:
    """some words"""
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def shape(value: Any) -> tuple[int, ...]:
    """chips along each axis like '2x4x4'"""
    return tuple(count(int(axis)) for axis in words(value).split("x"))


def one_of(*values: str) -> Callable[[Any], str]:
    def kind(value: Any) -> str:
        if value not in values:
            raise ValueError
        return value

    kind.__doc__ = "one of " + ", ".join(f'"{value}"' for value in values)
    return kind


_REQUIRED: Any = object()


class _Table:
    """A table of the file, from which fields are taken until none is left."""

    def __init__(self, values: Any, path: str, where: str) -> None:
        self.path, self._where = path, where
        if not isinstance(values, dict):
            raise RecipeError(f"the chip file {path}: [{where}] must be a table, got {values!r}")
        self._values, self._known = dict(values), list[str]()
        self._given = frozenset(values)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def take(self, name: str, kind: Callable[[Any], Any], *, default: Any = _REQUIRED) -> Any:
        self._known.append(name)
        value = self._values.pop(name, None)
        if value is None and default is not _REQUIRED:
            return default
        try:
            return kind(value)
        except ValueError:
            raise self.refusal(name, kind.__doc__ or "", value) from None

    def table(self, name: str, *, default: Any = None) -> _Table:
        self._known.append(name)
        return _Table(self._values.pop(name, default), self.path, self._inside(name))

    def tables(self, name: str) -> list[tuple[str, _Table]]:
        """Returns the tables in a table, by name; none where it is absent."""
        outer = self.table(name, default={})
        return [(key, _Table(value, self.path, outer._inside(key))) for key, value in outer._values.items()]

    def numbered(self, name: str) -> list[tuple[int, _Table]]:
        tables = self.tables(name)
        if not tables or not all(key.isdigit() and int(key) > 0 for key, _ in tables):
            raise self.refusal(name, "a table from the number in the name to a slice", [key for key, _ in tables])
        return sorted((int(key), table) for key, table in tables)

    def end(self) -> None:
        for name in self._values:
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f": did you mean {near[0]}?" if near else f"; there are {', '.join(self._known)}"
            inside = f"[{self._where}] has" if self._where else "there is"
            raise RecipeError(f"the chip file {self.path}: {inside} no field {name!r}{hint}")

    def refusal(self, name: str, wanted: str, got: Any) -> RecipeError:
        what = "and is missing" if got is None else f"got {got!r}"
        field = f"{name} of [{self._where}]"
        return RecipeError(f"the chip file {self.path}: {field} must be {wanted}, {what}; docs/chips.md has an example")

    def _inside(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name
