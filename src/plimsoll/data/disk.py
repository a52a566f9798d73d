"""Files on a disk: JSON that a data set needs, one writer at a time, and the room that is left."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from plimsoll.data import in_short
from plimsoll.errors import DataError, StoppedError


def read_json(path: Path, *, absent: str, again: str) -> Any:
    """Returns what a JSON file of a data set holds.

    Args:
        absent: The message of the DataError where there is no such file.
        again: What to do about a file that cannot be read; it follows the reason.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(absent) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise DataError(f"{path} cannot be read as JSON ({in_short(problem)}). {again}") from None


def locked(path: Path, *, wait: Callable[[], None] | None = None) -> ExitStack:
    """Takes the lock file beside `path`, which says that this process writes it; closing the stack gives it back.

    Where another process holds it: calls `wait`, and waits until that has ended; raises DataError without `wait`.
    """
    place = path.with_name(f"{path.name}.lock")
    while (lock := _taken(place, wait)) is None:
        if wait is None:
            raise DataError(f"another process is writing {path}: wait for it, or name another --out")
    held = ExitStack()
    held.callback(lock.close)
    held.callback(place.unlink, missing_ok=True)  # first: nobody may lock a file that is about to be removed
    return held


def _taken(place: Path, wait: Callable[[], None] | None) -> IO[str] | None:
    """Returns the lock file, open and locked; None where its holder keeps it, or removed it meanwhile."""
    lock = open(place, "w")  # noqa: SIM115  (held until the stack of `locked` is closed)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait is None:
            lock.close()
            return None
        wait()
        fcntl.flock(lock, fcntl.LOCK_EX)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock.fileno()), os.stat(place)):
            return lock
    lock.close()
    return None


@contextmanager
def writing(path: Path, full: Callable[[], str]) -> Iterator[ExitStack]:
    """Holds the lock beside `path`, and yields a stack for open files, which is closed before the lock is given back.

    A full disk, which may end any write, is a StoppedError of the words of `full`: what was marked is good.
    """
    lock, files = locked(path), ExitStack()
    try:
        yield files
    except OSError as problem:
        if is_full(problem):
            raise StoppedError(full()) from None
        raise
    finally:
        for stack in (files, lock):
            with suppress(OSError, RuntimeError):
                stack.close()


def other_options(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns in words which options a data set was begun with that are not those of `now`; empty where all agree."""
    now = json.loads(json.dumps(now))  # as it would be read again
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return "; ".join(f"{name} {then.get(name, 'unknown')} there and {now.get(name)} here" for name in names)


def is_full(problem: OSError) -> bool:
    """Tells a full disk (or quota) from other errors; HDF5 gives its number only in the text."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT) or "errno = 28" in str(problem)


def free_bytes(path: Path) -> int:
    """Returns the free bytes of the disk that `path` is written to."""
    status = os.statvfs(path.parent)
    return status.f_bavail * status.f_frsize
