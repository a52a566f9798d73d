"""Folders of prepared training data. A folder is either complete or absent, and records the inputs it was made from.

NAME/meta.json        sizes and hashes of the inputs, options, and counts of the data
NAME/manifest.json    checksums of all files of the folder, written last
NAME.partial/         the unfinished folder
NAME.lock             lock of the process that makes the folder
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
"""Counts of a folder's data, like rows or tokens, serializable as JSON."""
Make = Callable[[Path], Counts]
"""Function that writes prepared data into a folder, and returns their counts."""
Say = Callable[[str], None]
"""Function that receives messages for the user."""


@dataclass(frozen=True)
class Made:
    """A complete folder of prepared data."""

    path: Path
    made_with: Facts
    """`Facts` (sizes, hashes, options) about the inputs that the folder was made from."""
    counts: Counts


def opened(path: Path) -> Made | None:
    """Returns the folder at `path`; None if it is absent or not complete. Verifies the checksum of meta.json only.

    Raises:
        DataError: meta.json is damaged.
    """
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
    """Returns the folder at `path`, which `make` writes unless it exists. `held` describes the arguments."""
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
    """Yields the folder at `path`, after making it if absent. A lock keeps other processes from making it meanwhile.

    Args:
        path: Path of the folder. Nothing exists there until the folder is complete.
        made_with: Facts about all inputs that the data depend on.
        make: Function that writes the data into a folder, and returns their counts.
        continues: True if `make` can continue from the files of an interrupted attempt; False to remove them first.
        verified: True to verify the checksums of an existing folder, and to make a damaged folder again.
        say: Function that is called with messages: that another process makes the folder, or that it is damaged.

    Raises:
        DataError: The path exists, but is not a complete folder made from the same inputs.
        StoppedError: The disk is full.
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
    """Returns the path of the unfinished folder, which is renamed to `path` once complete."""
    return path.with_name(f"{path.name}.partial")


def _make(path: Path, made_with: Facts, make: Make, *, continues: bool) -> Made:
    """Fills the unfinished folder, writes meta.json and the manifest, and renames the folder to `path`."""
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

    # Rename the folder now that all its files are complete and on disk.
    unfinished.rename(path)
    flush_folder(path.parent)
    return Made(path, made_with, counts)


def _require_absent(path: Path) -> None:
    """Raises DataError if `path` exists and is not an empty folder."""
    is_empty_folder = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty_folder:
        raise DataError(f"{path} is there already, and is no complete data set: name another --out, or remove it")


@contextlib.contextmanager
def locked(path: Path, say: Say = lambda words: None) -> Iterator[None]:
    """Context manager that locks `path` by the file `path`.lock. Waits, with a message, if another process holds it."""
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
        Path(lock.lock_file).unlink(missing_ok=True)  # a waiting FileLock notices that the file is gone and retries
        lock.release()


def flush_files(folder: Path) -> None:
    """Flushes all files of a folder to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def stopped_if_full(path: Path) -> Iterator[None]:
    """Context manager that converts errors about a full disk to a StoppedError about `path`."""
    try:
        yield
    except OSError as problem:
        if is_full(problem):
            raise StoppedError(disk_full(path)) from None
        raise


def is_full(problem: OSError) -> bool:
    """Returns True for an error about a full disk or quota. Errors of HDF5 have the error number only in their text."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT) or "errno = 28" in str(problem)


def free_bytes(path: Path) -> int:
    """Returns the free bytes on the disk of the parent folder of `path`."""
    status = os.statvfs(path.parent)
    return status.f_bavail * status.f_frsize


def disk_full(path: Path) -> str:
    """Returns the error message about a full disk.

    Args:
        path: The data set that was being written.
    """
    return (
        f"the disk became full while {path} was written ({format_bytes(free_bytes(path))} free at {path.parent}): make"
        " room and run the same command again, or name an --out on another disk"
    )
