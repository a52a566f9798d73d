"""Chips to plan for, by name, with memory, rates, links and compiler options.

The figures are in `chips.toml` beside this file, each with its source. A user adds chips in a file of the same format
(docs/chips.md). Two cards were measured, an H100 and an H200. The chip `cpu` is this machine, and its rates are
measured.
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
"""Maps the platform of a chip to JAX's name of the backend."""
UNLISTED_SPARE = 3 * GIB // 2
"""Bytes of an unlisted card's nominal memory that a run cannot use. CUDA reports 0.2 to 0.5 GiB less than nominal for
listed cards, and 1 GiB lies outside XLA's pool."""
GPUS_IN_A_MACHINE = (2, 4, 8)
LOOP_SECONDS = 1e-4
"""Seconds of overhead per micro-batch on a TPU, assumed and not measured. On a GPU kernel launches count instead."""


def chip(name: str, file: Path | None = None) -> Chip:
    """Returns the chip called `name`. `h100x8` and `8xh100` are eight H100 in one machine.

    Args:
        name: Name that `plimsoll chips` lists, in upper or lower case, with or without hyphens and spaces, like
            `RTX 4070 Ti`.
        file: Chip file of the user, by default `user_file()`.

    Raises:
        RecipeError: No chip has that name.
    """
    if not isinstance(name, str):
        raise RecipeError(f"chip={name!r} is no name of a chip, like 'cpu' or 'h100': `plimsoll chips` lists them")
    plain = _squeezed(name)
    if plain == "cpu":  # without reading the catalogue, which takes 7 ms
        return _this_machine()

    # Look the name up: one GPU, a TPU slice, or several GPUs.
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
    """Returns the error for a name that no chip has, with similar names."""
    # The name may be that of a TPU slice, with a size that does not exist.
    family, _, size = name.lower().rpartition("-")
    siblings = [chip for chip in known.chips.values() if family and chip.name.rpartition("-")[0] == family]
    if siblings and siblings[0].platform == "tpu":
        return _no_slice(name, siblings, size)

    # The name is that of an unlisted card, or misspelt.
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
    """Returns the error for an unlisted card. It recommends the most similar chip, limited to the card's memory."""
    usable = gigabytes * GIB - UNLISTED_SPARE
    memory = "" if usable >= near.memory_bytes else f" --memory {usable / GIB:g}GiB"
    return RecipeError(
        f"there is no chip called {name!r}: too few figures of this {gigabytes} GB card are public, or CUDA 13 no"
        f" longer knows it. Nearest is --chip {near.name}{memory}, with rough times; or describe it in a chip file"
        " (docs/chips.md)"
    )


def _no_slice(name: str, siblings: list[Chip], size: str) -> RecipeError:
    """Returns the error for a TPU slice with a size that does not exist, with the sizes that do."""
    numbers = [int(chip.name.rpartition("-")[2]) for chip in siblings]
    wanted = int(size) if size.isdigit() else 0
    near = min(siblings, key=lambda chip: abs(int(chip.name.rpartition("-")[2]) - wanted))
    sizes = names_in_words(map(str, numbers), all_of_them=f"`plimsoll chips {near.name.rpartition('-')[0]}`")
    return RecipeError(
        f"there is no chip called {name!r}: slices come in {sizes}. The nearest is {near.name}, with devices:"
        f" {near.devices:,}, hosts: {near.hosts:,}"
    )


def _squeezed(name: str) -> str:
    """Returns a name in the form in which names are compared: `NVIDIA GeForce RTX 4090` is `rtx4090`."""
    plain = re.sub(r"[\s_-]+", "", name.lower())
    return plain.removeprefix("nvidia").removeprefix("geforce")


def chips(file: Path | None = None) -> list[Chip]:
    """Returns all chips: this machine, each GPU as a single device, and each TPU slice."""
    return [_this_machine(), *map(_alone, _catalogue(file).chips.values())]


def chip_called(description: str, file: Path | None = None) -> Chip | None:
    """Returns the GPU with CUDA's name `description`, with the rate of its links; None if no catalogue lists it.

    Args:
        description: CUDA's name of the GPU, which JAX also uses, like "NVIDIA H100 80GB HBM3".
        file: Chip file of the user, by default `user_file()`. Its GPUs take precedence.
    """
    named = [gpu for gpu in _catalogue(file).chips.values() if gpu.compiler.get("description") == description]
    return named[-1] if named else None


def rates(chip: Chip) -> Rates:
    """Returns the rates of one device from the catalogue, for the estimate of step times."""
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
    """Returns the user's chip file: `$PLIMSOLL_CHIPS`, or `chips.toml` in the configuration folder; None if absent."""
    named = os.environ.get("PLIMSOLL_CHIPS")
    path = Path(named).expanduser() if named else user_config_path("plimsoll") / "chips.toml"
    if named and not path.is_file():
        raise RecipeError(f"PLIMSOLL_CHIPS names {named}, and there is no such file: name a chip file, or unset it")
    return path if path.is_file() else None


def _catalogue(file: Path | None) -> Catalogue:
    """Returns plimsoll's own chips and those of the user's file, which take precedence."""
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
    """Returns a chip of the catalogue as a single device or slice. A single GPU has no links."""
    return replace(chip, link_bandwidth=0.0) if chip.platform == "cuda" else chip


def _several(card: Chip, devices: int) -> Chip:
    """Returns a chip of several equal GPUs: 2, 4 or 8 in one machine, or several machines of 8."""
    name = f"{card.name}x{devices}"
    if devices == 1:
        return _alone(card)
    most = max(GPUS_IN_A_MACHINE)
    if devices not in GPUS_IN_A_MACHINE and devices % most:
        offered = ", ".join(f"{card.name}x{count}" for count in GPUS_IN_A_MACHINE)
        raise RecipeError(
            f"{name} cannot be planned for: one machine has {offered}, and the GPUs of several machines come in"
            f" multiples of {most}"
        )
    if not card.link_bandwidth:
        raise RecipeError(
            f"{name} cannot be planned for: [chips.{card.name}] of your chip file has no rate for the links between"
            " cards. Add link_bandwidth, bytes per second one way (docs/chips.md)"
        )
    return replace(card, name=name, devices=devices, hosts=max(1, devices // most))
