"""A chip file: GPUs in TOML, and in our own catalogue families of TPU slices, read into plain figures.

A field that is missing, misspelt or of the wrong kind is refused in one paragraph that names file, chip and field.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from plimsoll.errors import RecipeError, did_you_mean, names_in_words

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
LIMITS = ("shared_memory_per_core", "shared_memory_per_block_optin", "threads_per_core_limit", "fpus_per_core")
"""Limits of a multiprocessor, by CUDA compute capability."""


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
    """The figures of KERNELS, of every GPU of the file that has none of its own."""
    kernel_sources: Mapping[str, str]
    chips: Mapping[str, Chip]
    """GPUs, each alone."""
    families: Mapping[str, Family]
    unlisted: Mapping[str, Mapping[str, int]]
    """Chip to the gigabytes of cards that are not listed, and of which it is the nearest."""


def read_catalogue(path: Path) -> Catalogue:
    """Reads our own catalogue, which nobody has to check."""
    document = tomllib.loads(path.read_text("utf-8"))
    kernels = document["kernels"]
    sources = kernels.pop("sources")
    return Catalogue(
        architectures=document["architectures"],
        kernels=kernels,
        kernel_sources=sources,
        chips={
            name: _gpu(name, values, document["architectures"], kernels, sources, path)
            for name, values in document["chips"].items()
        },
        families={name: _family(name, values, path) for name, values in document["families"].items()},
        unlisted=document["unlisted"],
    )


def read_chips(path: Path, known: Catalogue) -> dict[str, Chip]:
    """Reads the GPUs of a user's file, which may refer to the architectures of `known`, and has its figures of kernels.

    Raises:
        RecipeError: The file cannot be read, or a field is missing, misspelt or of the wrong kind.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise RecipeError(f"the chip file {path} cannot be read: {problem}") from None
    except tomllib.TOMLDecodeError as problem:
        raise RecipeError(f"the chip file {path} is not TOML: {problem}") from None

    # What every GPU of the file may refer to.
    whole = fields_of(document, {}, {"chips": table, "architectures": table, "kernels": table}, path=path)
    architectures = dict(known.architectures)
    for name, limits in whole.get("architectures", {}).items():
        architectures[name] = fields_of(limits, dict.fromkeys(LIMITS, count), path=path, where=f"architectures.{name}")
    kernels, sources = known.kernels, known.kernel_sources
    if "kernels" in whole:
        kernels = fields_of(whole["kernels"], dict.fromkeys(KERNELS, rate), path=path, where="kernels")
        sources = {}

    gpus = whole.get("chips", {})
    if "cpu" in gpus:
        raise RecipeError(
            f"the chip file {path}: [chips.cpu] would never be used, cpu is the machine at hand: its memory is what is"
            " free, its rates are measured. Give the chip another name"
        )
    return {name: _gpu(name, values, architectures, kernels, sources, path) for name, values in gpus.items()}


def _gpu(
    name: str,
    values: Any,
    architectures: Mapping[str, Mapping[str, int]],
    kernels: Mapping[str, float],
    kernel_sources: Mapping[str, str],
    path: Path,
) -> Chip:
    where = f"chips.{name}"
    required = {"platform": one_of("cuda"), "memory_bytes": count, "memory_bandwidth": rate}
    tables = {"flops": table, "compiler": table}
    rates = {"link_bandwidth": rate, "host_link_bandwidth": rate}
    optional = rates | {"host_memory_bytes": count, "sources": table, "kernels": table}
    figures = fields_of(values, required | tables, optional, path=path, where=where)

    # Its tables.
    others: dict[str, Kind] = dict.fromkeys(PRECISIONS[1:], rate)
    figures["flops"] = fields_of(figures["flops"], {"float32": rate}, others, path=path, where=f"{where}.flops")
    compiler = fields_of(
        figures["compiler"],
        {
            "description": words,
            "compute_capability": one_of(*architectures),
            "core_count": count,
            "clock_rate_ghz": rate,
            "l2_cache_size": count,
            "device_memory_size": count,
        },
        path=path,
        where=f"{where}.compiler",
    )
    total = compiler["device_memory_size"]
    if figures["memory_bytes"] > total:
        wanted = f"at most the {total:,} of device_memory_size"
        raise refusal("memory_bytes", wanted, figures["memory_bytes"], path=path, where=where)

    figures["compiler"] = {**compiler, **architectures[compiler["compute_capability"]]}
    own_kernels = fields_of(
        figures.get("kernels", {}), {}, dict.fromkeys(KERNELS, rate), path=path, where=f"{where}.kernels"
    )
    chip = _device(name, figures, path)
    own_sources = {figure: figures.get("sources", {}).get(figure, f"the file {path}") for figure in own_kernels}
    return replace(chip, kernels={**kernels, **own_kernels}, sources={**chip.sources, **kernel_sources, **own_sources})


def _family(name: str, values: Mapping[str, Any], path: Path) -> Family:
    compiler = dict(values["compiler"])
    host = _axes(compiler.pop("host"))
    device = _device(name, {**values, "compiler": compiler}, path)
    sizes = {
        int(size): Slice(
            topology=_axes(layout["topology"]),
            host=_axes(layout["host"]) if "host" in layout else host,
            host_memory_bytes=layout.get("host_memory_bytes", device.host_memory_bytes),
        )
        for size, layout in values["sizes"].items()
    }
    return Family(
        device=device,
        counts=values["counts"],
        devices_per_chip=values["devices_per_chip"],
        wraps_at=values["wraps_at"],
        sizes=sizes,
    )


def _axes(text: str) -> tuple[int, ...]:
    """Returns chips along each axis, from text like `2x4x4`."""
    return tuple(map(int, text.split("x")))


def _device(name: str, figures: Mapping[str, Any], path: Path) -> Chip:
    sources = figures.get("sources", {})
    return Chip(
        name=name,
        platform=figures["platform"],
        devices=1,
        hosts=1,
        memory_bytes=figures["memory_bytes"],
        flops={precision: figures["flops"][precision] for precision in PRECISIONS if precision in figures["flops"]},
        memory_bandwidth=figures["memory_bandwidth"],
        link_bandwidth=figures.get("link_bandwidth", 0.0),
        host_link_bandwidth=figures.get("host_link_bandwidth", 0.0),
        host_memory_bytes=figures.get("host_memory_bytes"),
        compiler=figures["compiler"],
        sources={figure: sources.get(figure, f"the file {path}") for figure in FIGURES if figure in figures},
    )


# The docstrings of these kinds of value are what a refusal says a figure has to be.

Kind = Callable[[Any], Any]


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


def table(value: Any) -> dict[str, Any]:
    """a table"""
    if not isinstance(value, dict):
        raise ValueError
    return value


def one_of(*values: str) -> Kind:
    def kind(value: Any) -> str:
        if value not in values:
            raise ValueError
        return value

    kind.__doc__ = "one of " + ", ".join(f'"{value}"' for value in values)
    return kind


def fields_of(
    values: Any,
    required: Mapping[str, Kind],
    optional: Mapping[str, Kind] | None = None,
    *,
    path: Path,
    where: str = "",
) -> dict[str, Any]:
    """Returns the fields of a table of a user's file, each as its kind reads it.

    Args:
        values: The table.
        required: Name of every field that it must have, to its kind.
        optional: The same of those that it may have.
        path: The file.
        where: Name of the table; empty for the whole file.

    Raises:
        RecipeError: A field is missing, misspelt or of the wrong kind.
    """
    if not isinstance(values, dict):
        raise RecipeError(f"the chip file {path}: [{where}] must be a table, got {values!r}")
    kinds = {**required, **(optional or {})}
    for name in values:
        if name not in kinds:
            hint = (
                did_you_mean(name, list(kinds)) or f"; there are {names_in_words(kinds, all_of_them='docs/chips.md')}"
            )
            inside = f"[{where}] has" if where else "there is"
            raise RecipeError(f"the chip file {path}: {inside} no field {name!r}{hint}")

    fields: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in values and name not in required:
            continue
        try:
            fields[name] = kind(values.get(name))
        except ValueError:
            raise refusal(name, kind.__doc__ or "", values.get(name), path=path, where=where) from None
    return fields


def refusal(name: str, wanted: str, value: Any, *, path: Path, where: str) -> RecipeError:
    what = "and is missing" if value is None else f"got {value!r}"
    place = f"{name} of [{where}]" if where else name
    return RecipeError(f"the chip file {path}: {place} must be {wanted}, {what}; docs/chips.md has an example")
