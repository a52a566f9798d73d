"""NVIDIA's driver, asked without JAX: whether it is here, its cards, and who holds their memory.

`nvidia-smi` comes with the driver. Where it is missing or fails, as in some containers, nothing is known of the cards.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.units import MIB, format_bytes

DRIVER_FILES = ("dev/nvidia0", "dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")
"""Files that exist where the driver is loaded, under WSL too: jax/_src/hardware_utils.py looks for the first three."""
SECONDS = 20
"""Time after which nvidia-smi counts as failed: without its persistence daemon the driver starts for each call."""


@dataclass(frozen=True)
class Gpu:
    """A card as the driver sees it."""

    index: int
    uuid: str
    kind: str
    free_bytes: int
    driver: str
    """Version of the driver."""
    holders: tuple[str, ...] = ()
    """Processes that hold its memory, in words."""


def driver_is_here(root: Path = Path("/")) -> bool:
    """Returns whether NVIDIA's driver is loaded. Starts no process."""
    return any((root / file).exists() for file in DRIVER_FILES)


def gpus(variables: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Returns the cards that `CUDA_VISIBLE_DEVICES` allows; none where nvidia-smi does not answer."""
    listed = _rows("--query-gpu=index,uuid,name,memory.free,driver_version", 5)
    holders = _holders() if listed else {}
    cards = [
        Gpu(int(index), uuid, kind, int(free) * MIB, driver, tuple(holders.get(uuid, ())))
        for index, uuid, kind, free, driver, *_ in listed
        if free.isdigit()
    ]
    allowed = variables.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return cards

    # By number, or by the beginning of an identifier, in the user's order.
    chosen = []
    for name in filter(None, map(str.strip, allowed.split(","))):
        chosen += [card for card in cards if name == str(card.index) or card.uuid.startswith(name)][:1]
    return chosen


def _holders() -> dict[str, list[str]]:
    """Returns the processes that hold memory of each card. The driver does not say how much under WSL."""
    holders: dict[str, list[str]] = {}
    for uuid, pid, *name, held in _rows("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", 4):
        size = f" with {format_bytes(int(held) * MIB)}" if held.isdigit() else ""
        holders.setdefault(uuid, []).append(f"{', '.join(name)} (process {pid}){size}")
    return holders


def _rows(query: str, columns: int) -> list[list[str]]:
    """Returns the rows of an answer of nvidia-smi, sizes in MiB; none where it is missing or fails."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
    return [row for row in rows if len(row) >= columns]  # the name of a program may have commas
