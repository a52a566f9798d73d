"""Queries to NVIDIA's driver without JAX: its presence, its GPUs, and the processes that use their memory.

`nvidia-smi` comes with the driver. If it is missing or fails, as in some containers, the list of GPUs is empty.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.units import MIB, format_bytes

DRIVER_FILES = ("dev/nvidia0", "dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version")
"""Files of which at least one exists if the driver is loaded, also under WSL. JAX checks for the first three
(jax/_src/hardware_utils.py)."""
SECONDS = 20
"""Seconds after which a call of nvidia-smi counts as failed. Without persistence mode, each call starts the driver."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVIDIA's driver reports it."""

    index: int
    uuid: str
    kind: str
    free_bytes: int
    driver: str
    """Version of the driver."""
    holders: tuple[str, ...] = ()
    """Descriptions of the processes that use the GPU's memory."""


def driver_is_here(root: Path = Path("/")) -> bool:
    """Returns True if NVIDIA's driver is loaded. Starts no process.

    Args:
        root: Root of the file system, for tests.
    """
    return any((root / file).exists() for file in DRIVER_FILES)


def gpus(variables: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Returns the GPUs that `CUDA_VISIBLE_DEVICES` allows; an empty list if nvidia-smi fails."""
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

    # Choose the GPUs that the user names, by index or by the beginning of a UUID, in the user's order.
    chosen = []
    for name in filter(None, map(str.strip, allowed.split(","))):
        chosen += [card for card in cards if name == str(card.index) or card.uuid.startswith(name)][:1]
    return chosen


def _holders() -> dict[str, list[str]]:
    """Returns descriptions of the processes that use each GPU's memory, by UUID; under WSL without the used bytes."""
    holders: dict[str, list[str]] = {}
    for uuid, pid, *name, held in _rows("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", 4):
        size = f" with {format_bytes(int(held) * MIB)}" if held.isdigit() else ""
        holders.setdefault(uuid, []).append(f"{', '.join(name)} (process {pid}){size}")
    return holders


def _rows(query: str, columns: int) -> list[list[str]]:
    """Queries nvidia-smi. Returns the rows of its CSV output, with sizes in MiB; an empty list if it fails.

    Args:
        query: Query option of nvidia-smi.
        columns: Minimum number of cells in a row; shorter rows are dropped.
    """
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
    return [row for row in rows if len(row) >= columns]  # rows may be longer: a program's name may have commas
