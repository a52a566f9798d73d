"""Reader of chip files: TOML with the figures of GPUs, and in plimsoll's own catalogue also of TPU slices.

A field that is missing, misspelt or of the wrong type is refused with the names of file, chip and field.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from plimsoll.errors import RecipeError, did_you_mean, names_in_words

PRECISIONS = ("float32", "tf32", "bfloat16", "float16")

COUNT, RATE, WORDS, TABLE = "a whole number above 0", "a number above 0", "some words", "a table"
TYPES: dict[str, tuple[type, ...]] = {COUNT: (int,), RATE: (int, float), WORDS: (str,), TABLE: (dict,)}
Kinds = Mapping[str, str | tuple[str, ...]]
"""Maps each field of a TOML table to its type in words, or to its allowed strings."""

FILE: Kinds = {"chips": TABLE, "architectures": TABLE, "kernels": TABLE}
FIGURES: Kinds = {
    "memory_bytes": COUNT,
    "flops": TABLE,
    "memory_bandwidth": RATE,
    "link_bandwidth": RATE,
    "host_link_bandwidth": RATE,
    "host_memory_bytes": COUNT,
    "compiler": TABLE,
}
"""Fields with the figures of a chip. `Chip.sources` has the source of each figure."""
GPU: Kinds = FIGURES | {"platform": ("cuda",), "kernels": TABLE, "sources": TABLE}
OPTIONAL = ("link_bandwidth", "host_link_bandwidth", "host_memory_bytes", "kernels", "sources")
KERNELS: Kinds = dict.fromkeys(
    ("product_share", "attention_share", "memory_share", "launch_seconds", "call_seconds"), RATE
)
"""Fields for a GPU's kernels: shares of the peak rates that they reach, and overheads (planner/kernel_seconds.py)."""
COMPILER: Kinds = {
    "description": WORDS,
    "compute_capability": WORDS,
    "core_count": COUNT,
    "clock_rate_ghz": RATE,
    "l2_cache_size": COUNT,
    "device_memory_size": COUNT,
}
LIMITS: Kinds = dict.fromkeys(
    ("shared_memory_per_core", "shared_memory_per_block_optin", "threads_per_core_limit", "fpus_per_core"), COUNT
)
"""Limits of a multiprocessor, which depend on the CUDA compute capability."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A device, or several devices that train together. Bytes and rates are those of one device."""

    name: str
    platform: Literal["cpu", "cuda", "tpu"]
    devices: int = 1
    """Number of devices, as JAX counts them."""
    hosts: int = 1
    """Number of machines, with a training process on each."""
    memory_bytes: int
    """Bytes that a run may use. The entry in `sources` names the bytes subtracted from the total."""
    flops: Mapping[str, float]
    """Dense floating-point operations per second, by precision. A precision without hardware units is absent."""
    memory_bandwidth: float
    """Bytes per second of the device's memory."""
    link_bandwidth: float = 0.0
    """Bytes per second that a device sends to other devices; 0 for a GPU that trains alone. In a chip file it is
    the rate from one GPU to another."""
    host_link_bandwidth: float = 0.0
    """Bytes per second between the device and its host's memory, one way; 0 if unknown."""
    host_memory_bytes: int | None = None
    """Memory of each host; None if it depends on the machine."""
    compiler: Mapping[str, Any]
    """Options that `topology.devices` passes to the compiler."""
    sources: Mapping[str, str]
    """Source of each figure, by name, like "memory_bytes"."""
    kernels: Mapping[str, float] = field(default_factory=dict)
    """Values of the fields in KERNELS; empty for a CPU or TPU, whose step times are not estimated from kernels."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Chips of a chip file, with the figures that they share."""

    architectures: Mapping[str, Mapping[str, int]]
    """Limits of a multiprocessor, by CUDA compute capability."""
    kernels: Mapping[str, float]
    """Values of the fields in KERNELS, for GPUs without values of their own."""
    kernel_sources: Mapping[str, str]
    chips: Mapping[str, Chip]
    """Chips by name: single GPUs and TPU slices."""
    unlisted: Mapping[str, Mapping[str, int]]
    """Maps each listed chip's name to the names of the most similar unlisted cards, with their memory in gigabytes."""


def read_catalogue(path: Path) -> Catalogue:
    """Reads plimsoll's own catalogue."""
    document = tomllib.loads(path.read_text("utf-8"))
    kernels = document["kernels"]
    sources = kernels.pop("sources")
    catalogue = Catalogue(
        architectures=document["architectures"],
        kernels=kernels,
        kernel_sources=sources,
        chips={},
        unlisted=document["unlisted"],
    )
    gpus = {name: _gpu(name, figures, catalogue, path) for name, figures in document["chips"].items()}
    families = [_slices(name, figures, path) for name, figures in document["families"].items()]
    slices = {chip.name: chip for family in families for chip in family}
    return replace(catalogue, chips=gpus | slices)


def with_chips_of(path: Path, known: Catalogue) -> Catalogue:
    """Returns a catalogue with the GPUs of a user's file added. They replace GPUs of the same name.

    Raises:
        RecipeError: The file cannot be read, or a field is missing, misspelt or of the wrong type.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise RecipeError(f"the chip file {path} cannot be read: {problem}") from None

    # Read the figures that all GPUs of the file share.
    file = f"the chip file {path}:"
    check(document, FILE, optional=tuple(FILE), table=file)
    own_limits = document.get("architectures", {})
    for capability, limits in own_limits.items():
        check(limits, LIMITS, table=f"{file} [architectures.{capability}]")
    refer_to = replace(known, architectures={**known.architectures, **own_limits})
    if "kernels" in document:
        check(document["kernels"], KERNELS, table=f"{file} [kernels]")
        refer_to = replace(refer_to, kernels=document["kernels"], kernel_sources={})

    gpus = document.get("chips", {})
    if "cpu" in gpus:
        raise RecipeError(
            f"{file} [chips.cpu] would never be used, because cpu is this machine: its memory is the free memory, and"
            " its rates are measured. Give the chip another name"
        )
    own = {name: _gpu(name, figures, refer_to, path) for name, figures in gpus.items()}
    return replace(known, chips={**known.chips, **own})


def _gpu(name: str, figures: Any, catalogue: Catalogue, path: Path) -> Chip:
    """Returns the GPU that a table in a chip file describes."""
    table = f"the chip file {path}: [chips.{name}"
    check(figures, GPU, optional=OPTIONAL, table=f"{table}]")
    check(figures["flops"], dict.fromkeys(PRECISIONS, RATE), optional=PRECISIONS[1:], table=f"{table}.flops]")
    own_kernels = figures.get("kernels", {})
    check(own_kernels, KERNELS, optional=tuple(KERNELS), table=f"{table}.kernels]")
    known = {"compute_capability": tuple(catalogue.architectures)}
    compiler = figures["compiler"]
    check(compiler, {**COMPILER, **known}, table=f"{table}.compiler]")
    if figures["memory_bytes"] > compiler["device_memory_size"]:
        raise RecipeError(
            f"{table}] memory_bytes must be at most the {compiler['device_memory_size']:,} of device_memory_size, got"
            f" {figures['memory_bytes']:,}"
        )

    of_file = f"the file {path}"
    own_sources = {figure: figures.get("sources", {}).get(figure, of_file) for figure in own_kernels}
    chip = _chip(name, figures, path)
    return replace(
        chip,
        compiler={**compiler, **catalogue.architectures[compiler["compute_capability"]]},
        kernels={**catalogue.kernels, **own_kernels},
        sources={**chip.sources, **catalogue.kernel_sources, **own_sources},
    )


def _slices(family: str, figures: Mapping[str, Any], path: Path) -> Iterator[Chip]:
    """Yields the slices of a family of TPUs. They differ only in size."""
    device = _chip(family, figures, path)
    compiler = dict(device.compiler)
    generation, host = compiler.pop("generation"), compiler.pop("host")
    for size, layout in figures["sizes"].items():
        axes = _axes(layout["topology"])
        host_axes = _axes(layout.get("host", host))
        chips = math.prod(axes)

        # Count the links of the TPU with the fewest: two along each axis if all axes wrap around, else one (at edges).
        wraps = all(axis % figures["wraps_at"] == 0 for axis in axes)
        links = sum(2 if wraps else 1 for axis in axes if axis > 1)
        yield replace(
            device,
            name=f"{family}-{size}",
            devices=chips * figures["devices_per_chip"],
            hosts=chips // math.prod(host_axes),
            link_bandwidth=links * device.link_bandwidth / figures["devices_per_chip"],
            host_memory_bytes=layout.get("host_memory_bytes", device.host_memory_bytes),
            compiler={
                **compiler,
                "topology_name": f"{generation}:{layout['topology']}",
                "chips_per_host_bounds": (*host_axes, 1, 1)[:3],
            },
        )


def _axes(text: str) -> tuple[int, ...]:
    """Returns the number of chips along each axis, from text like `2x4x4`."""
    return tuple(map(int, text.split("x")))


def _chip(name: str, figures: Mapping[str, Any], path: Path) -> Chip:
    """Returns the device that a table describes, with a source for each figure."""
    sources = figures.get("sources", {})
    stated = {figure: figures[figure] for figure in FIGURES if figure in figures}
    return Chip(
        name=name,
        platform=figures["platform"],
        sources={figure: sources.get(figure, f"the file {path}") for figure in stated},
        **stated,
    )


def check(values: Any, kinds: Kinds, *, optional: tuple[str, ...] = (), table: str) -> None:
    """Checks the fields of a table in a chip file.

    Args:
        values: The table.
        kinds: Fields of the table, with their types.
        optional: Fields that may be absent.
        table: Words for the table in error messages.

    Raises:
        RecipeError: A field is missing, misspelt or of the wrong type.
    """
    if not isinstance(values, dict):
        raise RecipeError(f"{table} must be a table, got {values!r}")
    for name in values:
        if name not in kinds:
            hint = did_you_mean(name, list(kinds))
            hint = hint or f"; there are {names_in_words(kinds, all_of_them='docs/chips.md')}"
            raise RecipeError(f"{table} has no field {name!r}{hint}")

    for name, kind in kinds.items():
        is_missing = name not in values
        if is_missing and name in optional:
            continue
        if is_missing or not is_of(kind, values[name]):
            instead = "and is missing" if is_missing else f"got {values[name]!r}"
            raise RecipeError(f"{table} {name} must be {in_words(kind)}, {instead}; docs/chips.md has an example")


def in_words(kind: str | tuple[str, ...]) -> str:
    return kind if isinstance(kind, str) else f"one of {', '.join(kind)}"


def is_of(kind: str | tuple[str, ...], value: Any) -> bool:
    """Returns True if a value from TOML has the type `kind`, or is one of the strings in `kind`."""
    if isinstance(kind, tuple):
        return value in kind
    is_number = kind in (COUNT, RATE)
    return type(value) in TYPES[kind] and (not is_number or 0 < value < math.inf)
