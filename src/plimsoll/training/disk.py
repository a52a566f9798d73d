"""Free disk for the checkpoints that a run keeps: counted before training, because a disk fills up hours later.

Imports no JAX: `plimsoll train` asks before it starts anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from plimsoll.errors import RunError
from plimsoll.units import KIB, format_bytes

KEPT = 2
"""The last ones; besides them the best."""
AT_ONCE = KEPT + 2
"""The last ones, the best, and the one being written: the oldest goes when the new one is whole."""
BESIDE_ARRAYS_BYTES = 256 * KIB
"""Shapes, position, manifest, and Orbax's own records: 164 KiB for 300 leaves (docs/log.md, "Disk")."""


def needed(state_bytes: int) -> dict[str, int]:
    """`checkpoint_bytes` of one, `kept_at_once`, and `bytes` of them all.

    As if nothing could be compressed; weights that have been trained lose 7 to 8 % in Orbax's files.
    """
    one = state_bytes + BESIDE_ARRAYS_BYTES
    return {"checkpoint_bytes": one, "kept_at_once": AT_ONCE, "bytes": AT_ONCE * one}


def require_room(checkpoints: Path, disk: Mapping[str, int], *, free: int | None = None) -> None:
    """Refuses a run whose checkpoints do not fit beside what it has saved already. `free` bytes, if not as found."""
    free = shutil.disk_usage(checkpoints).free if free is None else free
    there = sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file())
    if disk["bytes"] > free + there:
        raise RunError(
            f"{checkpoints} is to hold {disk['kept_at_once']} checkpoints of {format_bytes(disk['checkpoint_bytes'])}"
            f" at once (the last {KEPT}, the best, and the one being written), {format_bytes(disk['bytes'])} together;"
            f" the disk has {format_bytes(free)} free{_beside(there)}. Make"
            f" {format_bytes(disk['bytes'] - free - there)} of room, or name a folder on another disk with --run"
        )


def _beside(there: int) -> str:
    return f", and {format_bytes(there)} are there already" if there else ""
