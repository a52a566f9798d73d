"""Folders that are made once: complete or absent, and made with what they say.

NAME/meta.json        what it was made with, and counts
NAME/manifest.json    checksums of all its files, written last
NAME.partial/         while it is made
NAME.lock             while a process makes it: another one waits
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError, StoppedError
from plimsoll.files.facts import Facts
from plimsoll.files.manifest import MANIFEST, checksum, damage, finish, flush_folder, is_finished, remove
from plimsoll.units import format_bytes

META = "meta.json"
Counts = Mapping[str, Any]
"""JSON: what the maker of a folder says of it."""
Make = Callable[[Path], Counts]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """A folder that is complete."""

    path: Path
    made_with: Facts
    counts: Counts


def opened(path: Path) -> Made | None:
    """Returns a folder by its meta.json, which is held against its checksum; None if there is none that is complete."""
    if not is_finished(path):
        return None
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        is_whole = manifest[META] == checksum(path / META)
    except (OSError, ValueError, TypeError, LookupError):
        is_whole = False
    if not is_whole:
        raise DataError(f"{path / META} is damaged: copy the folder again, or remove it and make it again")
    meta = json.loads((path / META).read_text("utf-8"))
    return Made(path, Facts.from_json(meta["made_with"]), meta["counts"])


def made(path: Path, made_with: Facts, make: Make, **options: Any) -> Made:
    """Returns the folder at `path` if it is there, made with the same things; else has `make` fill it first.

    The arguments are those of `held`.
    """
    with held(path, made_with, make, **options) as folder:
        return folder


@contextlib.contextmanager
def held(
    path: Path,
    made_with: Facts,
    make: Make,
    *,
    continues: bool = False,
    verified: bool = False,
    say: Say = lambda words: None,
) -> Iterator[Made]:
    """Yields the folder at `path`, and keeps others from making or removing it meanwhile.

    Args:
        path: The folder. Nothing is there under this name until it is complete.
        made_with: All that its content follows from.
        make: Fills an empty folder, and returns counts of it.
        continues: Whether `make` goes on with what an earlier attempt left, which is removed otherwise.
        verified: Whether a folder that is there is held against its checksums, and made again where it is damaged.
        say: Receives a line where another process makes it, and one of damage.

    Raises:
        DataError: Something else is there under this name.
        StoppedError: The disk became full.
    """
    with locked(path, say):
        if verified and path.exists() and (problem := damage(path)):
            say(f"{path} is damaged and made again ({problem})")
            remove(path)
        folder = opened(path)
        if folder is None:
            _require_absent(path)
            folder = _make(path, made_with, make, continues=continues)
        difference = folder.made_with.difference(made_with)
        if difference:
            raise DataError(f"{path} is there already, and {difference}: name another --out, or remove it")
        yield folder


def partial_of(path: Path) -> Path:
    """Returns where a folder is made."""
    return path.with_name(f"{path.name}.partial")


def _make(path: Path, made_with: Facts, make: Make, *, continues: bool) -> Made:
    unfinished = partial_of(path)
    if not continues:
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True, exist_ok=True)
    try:
        with stopped_if_full(path):
            counts = make(unfinished)
            meta = {"made_with": made_with.to_json(), "counts": counts}
            (unfinished / META).write_text(json.dumps(meta), "utf-8")
            flush_files(unfinished)
            finish(unfinished)
    except BaseException:
        if not continues:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise

    # Complete first, then in place.
    unfinished.rename(path)
    flush_folder(path.parent)
    return Made(path, made_with, counts)


def _require_absent(path: Path) -> None:
    is_empty_folder = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty_folder:
        raise DataError(f"{path} is there already, and is no complete data set: name another --out, or remove it")


@contextlib.contextmanager
def locked(path: Path, say: Say = lambda words: None) -> Iterator[None]:
    """Holds the lock file beside a path. Where another process holds it, says so and waits."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"another process is making {path}: waiting")
        lock.acquire()
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # filelock takes a lock again whose file is gone
        lock.release()


def flush_files(folder: Path) -> None:
    """Waits until what was written into a folder is on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def stopped_if_full(path: Path) -> Iterator[None]:
    """Raises StoppedError for an error that says that the disk is full, on which `path` is written."""
    try:
        yield
    except OSError as problem:
        if is_full(problem):
            raise StoppedError(disk_full(path)) from None
        raise


def is_full(problem: OSError) -> bool:
    """Tells a full disk (or quota) from other errors; HDF5 gives its number only in the text."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT) or "errno = 28" in str(problem)


def free_bytes(path: Path) -> int:
    """Returns the free bytes of the disk that `path` is written to."""
    status = os.statvfs(path.parent)
    return status.f_bavail * status.f_frsize


def disk_full(path: Path) -> str:
    """Returns the message about a disk on which a data set had no room."""
    return (
        f"the disk became full while {path} was written ({format_bytes(free_bytes(path))} free at {path.parent}): make"
        " room and run the same command again, or name an --out on another disk"
    )
