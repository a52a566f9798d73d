"""What all that writes to a disk asks of it: one writer at a time, and room."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError


def locked(path: Path) -> Any:
    place = path.with_name(f"{path.name}.lock")
    lock = open(place, "w")  # noqa: SIM115  (held as long as the file grows)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock.fileno()), os.stat(place)):
            raise OSError("its holder took it away, and somebody has made another")
    except OSError:
        lock.close()
        raise DataError(f"another process is writing {path}: wait for it, or name another --out") from None
    return lock


def is_full(problem: OSError) -> bool:
    return problem.errno in (errno.ENOSPC, errno.EDQUOT) or "errno = 28" in str(problem)


def free_bytes(path: Path) -> int:
    """Of the disk that `path` is to lie on."""
    found = os.statvfs(path.parent)
    return found.f_bavail * found.f_frsize
