"""Free disk for the checkpoints that a run keeps: checked before training, because a disk fills up hours later.

Imports no JAX: `plimsoll train` checks before it starts anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from plimsoll.errors import RunError
from plimsoll.units import KIB, format_bytes

KEPT = 2
"""Checkpoints that are kept, the last ones, besides the best."""
AT_ONCE = KEPT + 2
"""Checkpoints on disk at most: the last ones, the best, and the one being written."""
METADATA_BYTES = 256 * KIB
"""Shapes, position, manifest, and Orbax's own records: 164 KiB for 300 leaves (notes, "Disk")."""


def needed(state_bytes: int) -> dict[str, int]:
    """Returns `checkpoint_bytes` of one, `kept_at_once`, and `bytes` of them all.

    Nothing is compressed.
    """
    each = state_bytes + METADATA_BYTES
    return {"checkpoint_bytes": each, "kept_at_once": AT_ONCE, "bytes": AT_ONCE * each}


def require_room(checkpoints: Path, disk: Mapping[str, int], *, free: int | None = None) -> None:
    """Raises RunError for a run whose checkpoints do not fit beside those it has saved already.

    Args:
        checkpoints: Their folder.
        disk: The result of `needed`.
        free: Free bytes, if not those that the disk has.
    """
    free = shutil.disk_usage(checkpoints).free if free is None else free
    existing = sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file())
    note = f", and {format_bytes(existing)} are there already" if existing else ""
    if disk["bytes"] > free + existing:
        raise RunError(
            f"{checkpoints} is to hold {disk['kept_at_once']} checkpoints of {format_bytes(disk['checkpoint_bytes'])}"
            f" at once (the last {KEPT}, the best, and the one being written), {format_bytes(disk['bytes'])} together;"
            f" the disk has {format_bytes(free)} free{note}. Make"
            f" {format_bytes(disk['bytes'] - free - existing)} of room, or name a folder on another disk with --run"
        )
