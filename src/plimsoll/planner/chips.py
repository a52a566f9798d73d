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
from plimsoll.planner.chip_file import Catalogue, Chip
from plimsoll.planner.types import Rates
from plimsoll.units import GIB

CATALOGUE = Path(__file__).with_name("chips.toml")
BACKEND = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
"""JAX's name for the platform of a chip."""
UNLISTED_SPARE = 3 * GIB // 2
"""What a run cannot use of the gigabytes on a card's box: CUDA reports 0.2 to 0.5 GiB less of listed cards, and 1 GiB
lies beside XLA's pool."""
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
    plain = _squeezed(name)
    if plain == "cpu":  # reading the list takes 7 ms
        return _this_machine()

    # One GPU, a slice of TPUs, or several GPUs in one machine.
    known = _catalogue(file)
    by_name = {_squeezed(each): chip for each, chip in known.chips.items()}
    if plain in by_name:
        return _alone(by_name[plain])
    several = re.fullmatch(r"([1-9]\d*)x(.+)|(.+)x([1-9]\d*)", plain)
    card = by_name.get(several[2] or several[3]) if several else None
    if several and card is not None and card.platform == "cuda":
        return _several(card, int(several[1] or several[4]))
    raise _unknown(name, known)


def _unknown(name: str, known: Catalogue) -> RecipeError:
    """Returns the error for a name of no chip, with the nearest ones."""
    # A slice of another size.
    family, _, size = name.lower().rpartition("-")
    siblings = [chip for chip in known.chips.values() if family and chip.name.rpartition("-")[0] == family]
    if siblings and siblings[0].platform == "tpu":
        return _no_slice(name, siblings, size)

    # A card that is not listed, or a misspelt name.
    for near, cards in known.unlisted.items():
        gigabytes = {_squeezed(card): size for card, size in cards.items()}.get(_squeezed(name))
        if gigabytes is not None:
            return _unlisted(name, gigabytes, known.chips[near])
    variants = [chip for chip in known.chips if chip.startswith(f"{name.lower()}-")]
    variants.sort(key=lambda chip: known.chips[chip].devices)
    similar = variants[:3] or difflib.get_close_matches(name.lower(), known.chips, n=3)
    names = names_in_words(known.chips, all_of_them="`plimsoll chips`")
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"there are {names}."
    return RecipeError(
        f"there is no chip called {name!r}: {hint} NVIDIA GPUs, TPUs and the CPU of this machine can be planned for."
        " `plimsoll chips` lists them, and docs/chips.md says how to add one"
    )


def _unlisted(name: str, gigabytes: int, near: Chip) -> RecipeError:
    """Returns the error for a card that is not listed, with the nearest one, held to its memory."""
    usable = gigabytes * GIB - UNLISTED_SPARE
    memory = "" if usable >= near.memory_bytes else f" --memory {usable / GIB:g}GiB"
    return RecipeError(
        f"there is no chip called {name!r}: too few figures of this {gigabytes} GB card are public, or CUDA 13 no"
        f" longer knows it. Nearest is --chip {near.name}{memory}, with rough times; or describe it in a chip file"
        " (docs/chips.md)"
    )


def _no_slice(name: str, siblings: list[Chip], size: str) -> RecipeError:
    """Returns the error for a size of no slice, with those that there are."""
    numbers = [int(chip.name.rpartition("-")[2]) for chip in siblings]
    wanted = int(size) if size.isdigit() else 0
    near = min(siblings, key=lambda chip: abs(int(chip.name.rpartition("-")[2]) - wanted))
    sizes = names_in_words(map(str, numbers), all_of_them=f"`plimsoll chips {near.name.rpartition('-')[0]}`")
    return RecipeError(
        f"there is no chip called {name!r}: slices come in {sizes}. The nearest is {near.name}, with devices:"
        f" {near.devices:,}, hosts: {near.hosts:,}"
    )


def _squeezed(name: str) -> str:
    """Returns a name as it is compared: `NVIDIA GeForce RTX 4090` is `rtx4090`."""
    plain = re.sub(r"[\s_-]+", "", name.lower())
    return plain.removeprefix("nvidia").removeprefix("geforce")


def chips(file: Path | None = None) -> list[Chip]:
    """Returns this machine, every GPU alone, and every TPU slice."""
    return [_this_machine(), *map(_alone, _catalogue(file).chips.values())]


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
    return catalogue if path is None else chip_file.with_chips_of(path, catalogue)


def _this_machine() -> Chip:
    return Chip(
        name="cpu",
        platform="cpu",
        memory_bytes=host.available_bytes(),
        flops={},
        memory_bandwidth=0.0,
        compiler={},
        sources={
            "memory_bytes": "free on this machine now, within the limits of its control groups",
            "flops": "measured when it is planned for",
        },
    )


def _alone(chip: Chip) -> Chip:
    """Returns a chip of the catalogue as it is by itself: one GPU sends nothing."""
    return replace(chip, link_bandwidth=0.0) if chip.platform == "cuda" else chip


def _several(card: Chip, devices: int) -> Chip:
    """Returns several cards, eight in each machine where they are more."""
    name = f"{card.name}x{devices}"
    if devices == 1:
        return _alone(card)
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
