"""A chip file: GPUs and families of TPU slices in TOML, read into plain figures.

A field that is missing, misspelt or of the wrong kind is refused in one paragraph that names file, chip and field.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from plimsoll.errors import RecipeError, did_you_mean

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
KERNELS = ("product_share", "attention_share", "memory_share", "launch_seconds", "call_seconds")
"""What kernels reach on a GPU: shares of its rates, and seconds (planner/kernel_seconds.py)."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A device, or several of them that train together. Bytes and rates are of one device."""

    name: str
    platform: Literal["cpu", "cuda", "tpu"]
    devices: int
    """Devices as JAX counts them."""
    hosts: int
    """Machines, a training process on each."""
    memory_bytes: int
    """Memory that a run may use; the source says what was subtracted."""
    flops: Mapping[str, float]
    """Precision to dense floating-point operations per second; a precision without units is absent."""
    memory_bandwidth: float
    """Bytes per second of the device's memory."""
    link_bandwidth: float
    """Bytes per second that a device sends to its neighbours, 0 where it is alone. As read from a file: of a GPU, its
    rate to another; of a TPU, that of one link, one way."""
    host_link_bandwidth: float
    """Bytes per second between the device and its host's memory, one way; 0 where it is not known."""
    host_memory_bytes: int | None
    """Memory of each host; None where it depends on the machine the chip is in."""
    compiler: Mapping[str, Any]
    """Options that `topology.devices` passes to the compiler."""
    sources: Mapping[str, str]
    """Figure to its source."""
    kernels: Mapping[str, float] = field(default_factory=dict)
    """The figures of KERNELS; empty where the time of a step is not added up from its kernels: of a CPU and a TPU."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One size of a family: chips along each axis, of the whole and of one host."""

    topology: tuple[int, ...]
    host: tuple[int, ...]
    host_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """TPU slices that differ in size alone. `sizes`: the number in the name to the slice."""

    device: Chip
    """One of their devices; its name is the family's."""
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
    kernels: Mapping[str, float]
    """The figures of KERNELS, of every GPU of the file."""
    kernel_sources: Mapping[str, str]
    chips: Mapping[str, Chip]
    """GPUs, each alone."""
    families: Mapping[str, Family]


def read(path: Path, *, known: Catalogue | None = None) -> Catalogue:
    """Reads a file of chips. It may refer to the architectures of `known`, and its GPUs have those figures of kernels.

    Raises:
        RecipeError: The file cannot be read, or a field is missing, misspelt or of the wrong kind.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise RecipeError(f"the chip file {path} cannot be read: {problem}") from None
    except tomllib.TOMLDecodeError as problem:
        raise RecipeError(f"the chip file {path} is not TOML: {problem}") from None
    whole = _Table(document, str(path), "")
    limits = ("shared_memory_per_core", "shared_memory_per_block_optin", "threads_per_core_limit", "fpus_per_core")
    own = {name: table.whole(dict.fromkeys(limits, count)) for name, table in whole.tables("architectures").items()}
    architectures = {**(known.architectures if known else {}), **own}
    kernels, kernel_sources = _kernels(whole.table("kernels", default={}), known)
    gpus = {name: _gpu(name, table, architectures) for name, table in whole.tables("chips").items()}
    gpus = {
        name: replace(gpu, kernels=kernels, sources={**gpu.sources, **kernel_sources}) for name, gpu in gpus.items()
    }
    families = {name: _family(name, table) for name, table in whole.tables("families").items()}
    whole.end()
    if "cpu" in gpus:
        raise RecipeError(
            f"the chip file {path}: [chips.cpu] would never be used, cpu is the machine at hand: its memory is what is"
            " free, its rates are measured. Give the chip another name"
        )
    return Catalogue(
        architectures=architectures, kernels=kernels, kernel_sources=kernel_sources, chips=gpus, families=families
    )


def _kernels(table: _Table, known: Catalogue | None) -> tuple[Mapping[str, float], Mapping[str, str]]:
    """Returns the figures of KERNELS and their sources; those of `known` where the file has none."""
    if known is not None and not table.given:
        return known.kernels, known.kernel_sources
    sources = table.table("sources", default={})
    figures = table.whole(dict.fromkeys(KERNELS, rate))
    return figures, sources.whole(dict.fromkeys(KERNELS, words)) if sources.given else {}


def _gpu(name: str, table: _Table, architectures: Mapping[str, Mapping[str, int]]) -> Chip:
    table.take("platform", one_of("cuda"))
    compiler = table.table("compiler").whole(
        {
            "description": words,
            "compute_capability": one_of(*architectures),
            "core_count": count,
            "clock_rate_ghz": rate,
            "l2_cache_size": count,
            "device_memory_size": count,
        }
    )
    compiler |= architectures[compiler["compute_capability"]]
    chip = _device(name, table, platform="cuda", compiler=compiler)
    table.end()
    total = compiler["device_memory_size"]
    if chip.memory_bytes > total:
        raise table.refusal("memory_bytes", f"at most the {total:,} of device_memory_size", chip.memory_bytes)
    return chip


def _family(name: str, table: _Table) -> Family:
    table.take("platform", one_of("tpu"))
    options = table.table("compiler")
    host = options.take("host", shape)
    compiler = {"generation": options.take("generation", words)}
    if chip_config := options.take("chip_config_name", words, default=None):
        compiler["chip_config_name"] = chip_config
    options.end()
    device = _device(name, table, platform="tpu", compiler=compiler)
    counts, devices_per_chip = table.take("counts", words), table.take("devices_per_chip", count)
    wraps_at = table.take("wraps_at", count)
    slices = table.tables("sizes")
    if not slices or not all(key.isdigit() and int(key) > 0 for key in slices):
        raise table.refusal("sizes", "a table from the number in the name to a slice", list(slices))
    sizes = {
        int(key): _slice(slices[key], host=host, memory=device.host_memory_bytes) for key in sorted(slices, key=int)
    }
    table.end()
    for size, layout in sizes.items():  # only links between chips are described
        chips = math.prod(layout.topology)
        devices = chips * devices_per_chip
        if chips > 1 and not device.link_bandwidth:
            raise table.refusal("link_bandwidth", f"{rate.__doc__}: size {size} has {devices} devices", None)
        if chips == 1 < devices:
            wanted = f"sizes of more than one chip: the link between its {devices} devices is not described"
            raise table.refusal(f"sizes.{size}", wanted, "one chip")
    return Family(device=device, counts=counts, devices_per_chip=devices_per_chip, wraps_at=wraps_at, sizes=sizes)


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


def _device(name: str, table: _Table, *, platform: Literal["cuda", "tpu"], compiler: Mapping[str, Any]) -> Chip:
    rates = table.table("flops")
    flops = {precision: rates.take(precision, rate, default=None) for precision in PRECISIONS}
    rates.end()
    if flops["float32"] is None:
        raise rates.refusal("float32", rate.__doc__ or "", None)
    sources = table.table("sources", default={})
    given = [figure for figure in FIGURES if figure in table.given]
    named = {figure: sources.take(figure, words, default=f"the file {table.path}") for figure in given}
    sources.end()
    return Chip(
        name=name,
        platform=platform,
        devices=1,
        hosts=1,
        memory_bytes=table.take("memory_bytes", count),
        flops={precision: each for precision, each in flops.items() if each is not None},
        memory_bandwidth=table.take("memory_bandwidth", rate),
        link_bandwidth=table.take("link_bandwidth", rate, default=0.0),
        host_link_bandwidth=table.take("host_link_bandwidth", rate, default=0.0),
        host_memory_bytes=table.take("host_memory_bytes", count, default=None),
        compiler=compiler,
        sources=named,
    )


# The docstrings of these kinds of value are what a refusal says a figure has to be.


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
        self.given = frozenset(values)

    def take(self, name: str, kind: Callable[[Any], Any], *, default: Any = _REQUIRED) -> Any:
        self._known.append(name)
        value = self._values.pop(name, None)
        if value is None and default is not _REQUIRED:
            return default
        try:
            return kind(value)
        except ValueError:
            raise self.refusal(name, kind.__doc__ or "", value) from None

    def whole(self, kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        """Returns the fields of a table that has these and no others."""
        fields = {name: self.take(name, kind) for name, kind in kinds.items()}
        self.end()
        return fields

    def table(self, name: str, *, default: Any = None) -> _Table:
        self._known.append(name)
        where = f"{self._where}.{name}" if self._where else name
        return _Table(self._values.pop(name, default), self.path, where)

    def tables(self, name: str) -> dict[str, _Table]:
        """Returns the tables in a table, by name; none where it is absent."""
        outer = self.table(name, default={})
        return {key: outer.table(key) for key in list(outer._values)}

    def end(self) -> None:
        """Raises RecipeError where a field is left that nobody has taken."""
        for name in self._values:
            hint = did_you_mean(name, self._known) or f"; there are {', '.join(self._known)}"
            inside = f"[{self._where}] has" if self._where else "there is"
            raise RecipeError(f"the chip file {self.path}: {inside} no field {name!r}{hint}")

    def refusal(self, name: str, wanted: str, got: Any) -> RecipeError:
        what = "and is missing" if got is None else f"got {got!r}"
        field = f"{name} of [{self._where}]"
        return RecipeError(f"the chip file {self.path}: {field} must be {wanted}, {what}; docs/chips.md has an example")
