"""Chips that can be planned for: memory, rates, links, and the options of their compilers.

The figures are in `chips.toml` beside this file, each with its source; a user adds chips in a file of the same form
(docs/chips.md). None was compared with a card. The chip `cpu` is the machine at hand: its rates are measured.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from dataclasses import replace
from pathlib import Path

from platformdirs import user_config_path

from plimsoll.errors import RecipeError
from plimsoll.planner import chip_file, host
from plimsoll.planner.chip_file import Catalogue, Chip, Family
from plimsoll.planner.types import Rates

CATALOGUE = Path(__file__).with_name("chips.toml")
BACKEND = {"cuda": "gpu", "tpu": "tpu"}
"""JAX's name for the platform of a chip."""
GPUS_IN_A_MACHINE = (2, 4, 8)
ELSEWHERE = {
    r"(amd|radeon|instinct)?(mi\d{2,3}[axhp]?|rx\d{4}(xtx?|gre)?|[67]900xtx?)|amd|rocm": (
        "it is AMD's, and plans are compiled for NVIDIA GPUs and TPUs only. JAX trains on it by AMD's own plug-in,"
        " without a plan of plimsoll; `plimsoll chips` lists what can be planned for"
    ),
    r"(apple)?m[1-9](pro|max|ultra)?|apple|metal|mps": (
        "it is Apple's, whose GPU no current JAX compiles for. On a Mac plimsoll plans for its CPU and trains there:"
        " --chip cpu, or leave --chip out"
    ),
    r"(nvidia)?(jetson.*|orin.*|(agx)?orin.*)": (
        "a Jetson's GPU shares one memory with its CPU, and a plan counts the two apart. `plimsoll chips` lists what"
        " can be planned for"
    ),
}
"""Names that people type of chips that no plan is made for, squeezed, and why."""
LOOP_SECONDS = 1e-4
"""Time of one more micro-batch on a TPU. Assumed, not measured; of a GPU the kernels are counted."""


KINDS = {
    **dict.fromkeys(("gpu", "cuda", "nvidia", "geforce", "rtx"), "a GPU by its name, like h100, a100-80 or rtx4090"),
    "tpu": "a TPU by its generation and the size of its slice, like tpu-v5e-8 or tpu-v4-64",
}
"""Names that people type of a kind of chip, and what to name instead."""
NO_DEVICES = re.compile(r"(.+?)\s*x\s*(?:-\s*\d+|0+)|(?:-\s*\d+|0+)\s*x\s*(.+)", re.IGNORECASE)
"""Name of a GPU with how many there are, which is none: `h100x0`, `-1xh100`."""


def chip(name: str, file: Path | None = None) -> Chip:
    """Returns a chip by its name. `h100x8` and `8xh100` are eight h100 in one machine.

    Args:
        name: As `plimsoll chips` lists them, in upper or lower case, with or without hyphens and spaces: `RTX 4070 Ti`.
        file: The user's chips, else `user_file()`.

    Raises:
        RecipeError: There is no such chip; of other makers, why.
    """
    if not isinstance(name, str):
        raise RecipeError(f"chip={name!r} is no name of a chip, like 'cpu' or 'h100': `plimsoll chips` lists them")
    if name == "cpu" and file is None and user_file() is None:  # reading the list takes 7 ms
        return _this_machine()
    known = _catalogue(file)
    if none := NO_DEVICES.fullmatch(name.strip()):
        gpu = _as_listed(none[1] or none[2], known)
        if gpu in known.chips:
            raise RecipeError(f"{name} has no device: of one kind several are named like {gpu}x8, and one is {gpu}")
    if (name := _as_listed(name, known)) == "cpu":
        return _this_machine()
    if name in known.chips:
        return _gpus(known.chips[name])
    family, _, size = name.rpartition("-")
    if family in known.families:
        return _slice(known.families[family], size)
    if several := re.fullmatch(r"(\d+)x(.+)|(.+)x(\d+)", name):
        gpu, devices = several[2] or several[3], int(several[1] or several[4])
        if gpu in known.chips:
            return _gpus(known.chips[gpu], devices=devices)
    slices = [f"{family}-{size}" for family, layout in known.families.items() for size in layout.sizes]
    for pattern, why in ELSEWHERE.items():
        if re.fullmatch(pattern, _squeezed(name)):
            raise RecipeError(f"{name} cannot be planned for: {why}")
    listed = "`plimsoll chips` lists them"
    if kind := KINDS.get(_squeezed(name)):
        raise RecipeError(
            f"{name} is a kind of chip, and a plan is for one of them: name {kind} ({listed}), or leave --chip out for"
            " the chip that is here"
        )
    every = [*known.chips, *slices]
    sizes = [chip for chip in every if chip.startswith(f"{name}-")]
    near = sizes[:3] or difflib.get_close_matches(name.lower(), ["cpu", *every], n=3)
    hint = f"did you mean {' or '.join(near)}? {listed}" if near else listed
    raise RecipeError(f"there is no chip called {name!r}: {hint}, and docs/chips.md says how to add one")


def _as_listed(name: str, known: Catalogue) -> str:
    """Returns the chip's name in the form of the list, where one is meant; else the name in lower case.

    A card's memory may stand behind its name, as shops have it: `RTX 3060 12GB`.
    """
    listed = {_squeezed(each): each for each in known.chips}
    listed |= {
        f"{plain}{math.ceil(known.chips[each].compiler['device_memory_size'] / 2**30)}gb": each
        for plain, each in listed.items()
    }
    plain = _squeezed(name)
    for prefix in ("", "nvidia", "nvidiageforce", "geforce"):
        if plain.startswith(prefix) and plain.removeprefix(prefix) in listed:
            return listed[plain.removeprefix(prefix)]
    if several := re.fullmatch(r"(\d+)x(.+)|(.+)x(\d+)", plain):
        gpu, devices = several[2] or several[3], several[1] or several[4]
        if gpu in listed:
            return f"{listed[gpu]}x{devices}"
    return name if name in known.chips else name.lower()


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


def chips(file: Path | None = None) -> list[Chip]:
    """Returns this machine, every GPU alone, and every TPU slice."""
    known = _catalogue(file)
    slices = [_slice(family, str(size)) for family in known.families.values() for size in family.sizes]
    return [_this_machine(), *map(_gpus, known.chips.values()), *slices]


def chip_called(description: str, file: Path | None = None) -> Chip | None:
    """Returns the GPU that CUDA, and JAX, call so, with the rate of its links; None if no list has it.

    Args:
        description: As `description` of a chip's compiler options, like "NVIDIA H100 80GB HBM3".
        file: The user's chips, else `user_file()`; those have precedence.
    """
    named = [gpu for gpu in _catalogue(file).chips.values() if gpu.compiler.get("description") == description]
    return named[-1] if named else None


def rates(chip: Chip) -> Rates:
    """Returns the rates of one device for the roofline, from the catalogue."""
    assert chip.platform != "cpu", "a CPU's rates are measured by the compile child"
    return Rates(
        flops=chip.flops,
        copy_bytes=chip.memory_bandwidth,
        first_touch_bytes=math.inf,
        loop_seconds=LOOP_SECONDS if not chip.kernels else 0.0,
        launch_seconds=chip.kernels.get("launch_seconds", 0.0),
        call_seconds=chip.kernels.get("call_seconds", 0.0),
        source="data sheet",
        link_bytes=chip.link_bandwidth,
        host_link_bytes=chip.host_link_bandwidth,
    )


def user_file() -> Path | None:
    """Returns `$PLIMSOLL_CHIPS`, else `chips.toml` in the user's configuration folder; None where there is none."""
    named = os.environ.get("PLIMSOLL_CHIPS")
    path = Path(named).expanduser() if named else user_config_path("plimsoll") / "chips.toml"
    if named and not path.is_file():
        raise RecipeError(f"PLIMSOLL_CHIPS names {named}, and there is no such file: name a chip file, or unset it")
    return path if path.is_file() else None


def _catalogue(file: Path | None) -> Catalogue:
    built_in = chip_file.read(CATALOGUE)
    path = file or user_file()
    if path is None:
        return built_in
    added = chip_file.read(path, known=built_in)
    return Catalogue(
        architectures=added.architectures,
        kernels=added.kernels,
        kernel_sources=added.kernel_sources,
        chips={**built_in.chips, **added.chips},
        families={**built_in.families, **added.families},
    )


def _this_machine() -> Chip:
    return Chip(
        name="cpu",
        platform="cpu",
        devices=1,
        hosts=1,
        memory_bytes=host.available_bytes(),
        flops={},
        memory_bandwidth=0.0,
        link_bandwidth=0.0,
        host_link_bandwidth=0.0,
        host_memory_bytes=None,
        compiler={},
        sources={"memory_bytes": "free on this machine now, within the limits of its control groups"},
    )


def _gpus(card: Chip, *, devices: int = 1) -> Chip:
    """Returns several cards, eight in each machine where they are more, or one alone, which sends nothing."""
    name = f"{card.name}x{devices}"
    if devices == 1:
        return replace(card, link_bandwidth=0.0)
    most = max(GPUS_IN_A_MACHINE)
    if devices not in GPUS_IN_A_MACHINE and devices % most:
        offered = ", ".join(f"{card.name}x{count}" for count in GPUS_IN_A_MACHINE)
        raise RecipeError(
            f"{name} cannot be planned for: GPUs of one machine are counted as {offered}, and those of several"
            f" machines in multiples of {most}"
        )
    if not card.link_bandwidth:
        raise RecipeError(
            f"{name} cannot be planned for: [chips.{card.name}] of your chip file does not say how fast the cards"
            " reach one another. Add link_bandwidth, bytes per second one way (docs/chips.md)"
        )
    return replace(card, name=name, devices=devices, hosts=max(1, devices // most))


def _slice(family: Family, size: str) -> Chip:
    device, sizes = family.device, list(family.sizes)
    if not size.isdigit() or int(size) not in sizes:
        near = min(sizes, key=lambda each: abs(each - int(size))) if size.isdigit() else sizes[0]
        example = _slice(family, str(near))
        hosts = "1 host" if example.hosts == 1 else f"{example.hosts} hosts"
        raise RecipeError(
            f"there is no topology {device.name}-{size}: the number counts {family.counts}, and slices come in"
            f" {', '.join(map(str, sizes))}. The nearest is {example.name}, {example.devices} devices on {hosts}"
        )
    layout = family.sizes[int(size)]
    in_all, in_a_host = math.prod(layout.topology), math.prod(layout.host)
    # Links of the chip that has fewest: at the edge of an axis that does not wrap around it has one neighbour there.
    wraps = all(axis % family.wraps_at == 0 for axis in layout.topology)
    links = sum(2 if wraps else 1 for axis in layout.topology if axis > 1)
    compiler = dict(device.compiler)
    generation = compiler.pop("generation")
    compiler["topology_name"] = f"{generation}:{'x'.join(map(str, layout.topology))}"
    compiler["chips_per_host_bounds"] = (*layout.host, 1, 1)[:3]
    return replace(
        device,
        name=f"{device.name}-{size}",
        devices=in_all * family.devices_per_chip,
        hosts=in_all // in_a_host,
        link_bandwidth=links * device.link_bandwidth / family.devices_per_chip,
        host_memory_bytes=layout.host_memory_bytes,
        compiler=compiler,
    )
