"""Check of the free disk space for a run's checkpoints, before training rather than hours later.

Does not import JAX, because `plimsoll train` runs the check before it starts other processes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from plimsoll.errors import RunError
from plimsoll.planned import Disk
from plimsoll.units import KIB, format_bytes

KEPT = 2
"""Number of newest checkpoints that are kept, in addition to the best one."""
AT_ONCE = KEPT + 2
"""Largest number of checkpoints on disk at a time: the newest ones, the best, and the one being written."""
METADATA_BYTES = 256 * KIB
"""Bytes of a checkpoint besides its arrays: position, manifest, and Orbax's metadata. 164 KiB were measured for 300
leaves (notes, "Disk")."""


def needed(state_bytes: int) -> Disk:
    """Returns the disk space that a run's checkpoints need. Checkpoints are not compressed.

    Args:
        state_bytes: Bytes of the arrays in one checkpoint.
    """
    checkpoint_bytes = state_bytes + METADATA_BYTES
    return Disk(checkpoint_bytes=checkpoint_bytes, kept_at_once=AT_ONCE, bytes=AT_ONCE * checkpoint_bytes)


def require_room(checkpoints: Path, disk: Disk, *, free: int | None = None) -> None:
    """Raises RunError if a run's checkpoints do not fit on the disk. The bytes of existing checkpoints count as free.

    Args:
        checkpoints: The folder of the run's checkpoints.
        disk: Disk space from `needed`.
        free: Free bytes; those of the folder's disk if left out.
    """
    free = shutil.disk_usage(checkpoints).free if free is None else free
    existing = sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file())
    note = f", and {format_bytes(existing)} are there already" if existing else ""
    missing = disk.bytes - free - existing
    if missing > 0:
        size = format_bytes(disk.checkpoint_bytes)
        raise RunError(
            f"{checkpoints} must hold {disk.kept_at_once} checkpoints of {size} at once (the last {KEPT}, the best,"
            f" and the one being written), {format_bytes(disk.bytes)} together; the disk has {format_bytes(free)}"
            f" free{note}. Make {format_bytes(missing)} of room, or name a folder on another disk with --run"
        )
