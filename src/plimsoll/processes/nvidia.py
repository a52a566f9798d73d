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
class Holder:
    """A process that holds memory of a card."""

    pid: int
    name: str
    held_bytes: int | None
    """None where the driver does not say, as under WSL."""

    def __str__(self) -> str:
        held = "" if self.held_bytes is None else f" with {format_bytes(self.held_bytes)}"
        return f"{self.name} (process {self.pid}){held}"


@dataclass(frozen=True)
class Gpu:
    """A card as the driver sees it."""

    index: int
    uuid: str
    kind: str
    free_bytes: int
    driver: str
    """Version of the driver."""
    holders: tuple[Holder, ...] = ()


def driver_is_here(root: Path = Path("/")) -> bool:
    """Returns whether NVIDIA's driver is loaded. Starts no process."""
    return any((root / file).exists() for file in DRIVER_FILES)


def gpus(variables: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Returns the cards that `CUDA_VISIBLE_DEVICES` allows; none where nvidia-smi does not answer."""
    listed = _rows("--query-gpu=index,uuid,name,memory.free,driver_version", columns=5)
    holders = _rows("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", columns=4) if listed else []
    found = [
        Gpu(
            index=int(index),
            uuid=uuid,
            kind=kind,
            free_bytes=int(free) * MIB,
            driver=driver,
            holders=tuple(
                Holder(int(pid), ", ".join(name), int(held) * MIB if held.isdigit() else None)
                for of, pid, *name, held in holders
                if of == uuid
            ),
        )
        for index, uuid, kind, free, driver, *_ in listed
        if free.isdigit()
    ]
    allowed = variables.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return found
    names = [name.strip() for name in allowed.split(",") if name.strip()]
    chosen = ((gpu for gpu in found if name == str(gpu.index) or gpu.uuid.startswith(name)) for name in names)
    return [gpu for gpu in (next(matching, None) for matching in chosen) if gpu is not None]


def _rows(query: str, *, columns: int) -> list[list[str]]:
    """Returns the rows of an answer of nvidia-smi, sizes in MiB; none where it is missing or fails."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = ([cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines())
    return [row for row in rows if len(row) >= columns]  # the name of a program may have commas
