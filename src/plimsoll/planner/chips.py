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

from plimsoll.errors import RecipeError, names_in_words
from plimsoll.planner import chip_file, host
from plimsoll.planner.chip_file import Catalogue, Chip, Family
from plimsoll.planner.types import Rates
from plimsoll.units import GIB

CATALOGUE = Path(__file__).with_name("chips.toml")
BACKEND = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
"""JAX's name for the platform of a chip."""
KINDS = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}
"""Words that are no chip's name, to their platform."""
MAKERS = {
    "AMD": r"amd.*|rocm|mi\d{2,3}[a-z]?|(radeon)?rx\d{4}(xtx?)?",
    "Apple": r"apple.*|metal|mps|m[1-9](pro|max|ultra)?",
    "Intel": r"intel.*|xpu|gaudi\d?|arc[ab]\d{3}",
    "Amazon": r"trainium\d?|trn\d|inferentia\d?",
}
"""Makers of chips that are not planned for, to their names."""
UNLISTED_SPARE = 3 * GIB // 2
"""What a run cannot use of the gigabytes on a card's box: CUDA reports 0.2 to 0.5 GiB less of listed cards, and 1 GiB
lies beside XLA's pool."""
OLDER = r"[pvk]\d+|gtx10"
"""Beginnings of names of cards before Turing."""
GPUS_IN_A_MACHINE = (2, 4, 8)
LOOP_SECONDS = 1e-4
"""Time of one more micro-batch on a TPU. Assumed, not measured; of a GPU the kernels are counted."""


def chip(name: str, file: Path | None = None) -> Chip:
    """Returns a chip by its name. `h100x8` and `8xh100` are eight h100 in one machine.

    Args:
        name: As `plimsoll chips` lists them, in upper or lower case, with or without hyphens and spaces: `RTX 4070 Ti`.
        file: The user's chips, else `user_file()`.

    Raises:
        RecipeError: There is no such chip.
    """
    if not isinstance(name, str):
        raise RecipeError(f"chip={name!r} is no name of a chip, like 'cpu' or 'h100': `plimsoll chips` lists them")
    if name == "cpu" and file is None and user_file() is None:  # reading the list takes 7 ms
        return _this_machine()
    known = _catalogue(file)

    # One GPU, or several in one machine.
    plain = _squeezed(name)
    if plain == "cpu":
        return _this_machine()
    gpus = {_squeezed(each): gpu for each, gpu in known.chips.items()}
    if plain in gpus:
        return _gpus(gpus[plain])
    several = re.fullmatch(r"([1-9]\d*)x(.+)|(.+)x([1-9]\d*)", plain)
    if several and (gpu := gpus.get(several[2] or several[3])):
        return _gpus(gpu, devices=int(several[1] or several[4]))

    # A slice of TPUs.
    family, _, size = name.lower().rpartition("-")
    if family in known.families:
        return _slice(known.families[family], size)

    raise _unknown(name, known)


def _unknown(name: str, known: Catalogue) -> RecipeError:
    """Returns the error for a name of no chip: with its kind's names, why it is not listed, or what may be meant."""
    plain = _squeezed(name)

    # A word for a kind of chip.
    smallest = [f"{family}-{min(layout.sizes)}" for family, layout in known.families.items()]
    kind = KINDS.get(plain)
    if kind is not None:
        names = names_in_words(known.chips if kind == "cuda" else smallest, all_of_them="`plimsoll chips`")
        return RecipeError(f"{name!r} is a kind of chip: name one, like {names}")

    # A chip of somebody else, or a card of whose figures too few are public.
    maker = next((maker for maker, names in MAKERS.items() if re.fullmatch(names, plain)), None)
    if maker is not None:
        return RecipeError(
            f"there is no chip called {name!r}, and JAX has no compiler here for chips of {maker}: NVIDIA GPUs, TPUs"
            " and the CPU of this machine can be planned for (`plimsoll chips`)"
        )
    near = next((like for like, cards in known.unlisted.items() if plain in map(_squeezed, cards)), None)
    if near is not None:
        return _unlisted(name, known, near)

    # A misspelt name.
    slices = [f"{family}-{size}" for family, layout in known.families.items() for size in layout.sizes]
    every = [*known.chips, *slices]
    sizes = [chip for chip in every if chip.startswith(f"{name.lower()}-")]
    similar = sizes[:3] or difflib.get_close_matches(name.lower(), ["cpu", *every], n=3)
    hint = f"did you mean {' or '.join(similar)}? " if similar else ""
    return RecipeError(
        f"there is no chip called {name!r}: {hint}NVIDIA GPUs, TPUs and the CPU of this machine can be planned for."
        " `plimsoll chips` lists their names, and docs/chips.md says how to add one"
    )


def _unlisted(name: str, known: Catalogue, near: str) -> RecipeError:
    """Returns the error for a card that is not listed: with the nearest listed one, held to its memory."""
    plain = _squeezed(name)
    gigabytes = next(size for card, size in known.unlisted[near].items() if _squeezed(card) == plain)
    usable = gigabytes * GIB - UNLISTED_SPARE
    memory = "" if usable >= known.chips[near].memory_bytes else f" --memory {usable / GIB:g}GiB"
    nearest = f"Nearest is --chip {near}{memory}, with rough times"
    if re.match(OLDER, plain):
        why = f"CUDA 13, which plimsoll compiles with, no longer knows this {gigabytes} GB card"
        return RecipeError(f"there is no chip called {name!r}: {why}. {nearest}")
    why = f"too few figures of this {gigabytes} GB card are public"
    return RecipeError(
        f"there is no chip called {name!r}: {why}. {nearest}; or describe it in a chip file (docs/chips.md)"
    )


def _squeezed(name: str) -> str:
    """Returns a name as it is compared: `NVIDIA GeForce RTX 4090` is `rtx4090`."""
    plain = re.sub(r"[\s_-]+", "", name.lower())
    return plain.removeprefix("nvidia").removeprefix("geforce")


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
    """Returns our chips, and those of the user's file before them."""
    catalogue = chip_file.read_catalogue(CATALOGUE)
    path = file or user_file()
    if path is None:
        return catalogue
    added = chip_file.read_chips(path, catalogue)
    return replace(catalogue, chips={**catalogue.chips, **added})


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
        sources={
            "memory_bytes": "free on this machine now, within the limits of its control groups",
            "flops": "measured when it is planned for",
        },
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
        come = names_in_words(map(str, sizes), all_of_them=f"`plimsoll chips {device.name}`")
        raise RecipeError(
            f"there is no topology {device.name}-{size}: the number counts {family.counts}, and slices come in {come}."
            f" The nearest is {example.name}, {example.devices} devices on {hosts}"
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
