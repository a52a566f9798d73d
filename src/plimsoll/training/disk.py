"""Free disk for the checkpoints that a run keeps: checked before training, because a disk fills up hours later.

Imports no JAX: `plimsoll train` checks before it starts anything.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from plimsoll.errors import RunError
from plimsoll.planned import Disk
from plimsoll.units import KIB, format_bytes

KEPT = 2
"""Checkpoints that are kept, the last ones, besides the best."""
AT_ONCE = KEPT + 2
"""Checkpoints on disk at most: the last ones, the best, and the one being written."""
METADATA_BYTES = 256 * KIB
"""Shapes, position, manifest, and Orbax's own records: 164 KiB for 300 leaves (notes, "Disk")."""


def needed(state_bytes: int) -> Disk:
    """Returns the bytes of a run's checkpoints. Nothing is compressed."""
    checkpoint_bytes = state_bytes + METADATA_BYTES
    return Disk(checkpoint_bytes=checkpoint_bytes, kept_at_once=AT_ONCE, bytes=AT_ONCE * checkpoint_bytes)


def require_room(checkpoints: Path, disk: Disk, *, free: int | None = None) -> None:
    """Raises RunError for a run whose checkpoints do not fit beside those it has saved already.

    Args:
        checkpoints: Their folder.
        disk: The result of `needed`.
        free: Free bytes, if not those that the disk has.
    """
    free = shutil.disk_usage(checkpoints).free if free is None else free
    existing = sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file())
    note = f", and {format_bytes(existing)} are there already" if existing else ""
    missing = disk.bytes - free - existing
    if missing > 0:
        size = format_bytes(disk.checkpoint_bytes)
        raise RunError(
            f"{checkpoints} is to hold {disk.kept_at_once} checkpoints of {size} at once (the last {KEPT}, the best,"
            f" and the one being written), {format_bytes(disk.bytes)} together; the disk has {format_bytes(free)}"
            f" free{note}. Make {format_bytes(missing)} of room, or name a folder on another disk with --run"
        )
