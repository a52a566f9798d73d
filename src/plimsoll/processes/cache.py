"""The cache folder and its size limit. Entries used least recently are removed first.

    answers/     answers of compile processes and measured rates, as JSON
    compiled/    compiled functions of plimsoll and JAX; in a subfolder, XLA's timings of GPU kernels
    tokens/      one folder for each tokenised text

An entry is one file, or the folder of one tokenised text. The limit does not count `runs/`, the local copies of runs in
cloud buckets. They are never removed, because they may be newer than their bucket.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from plimsoll.errors import PlimsollError
from plimsoll.units import GIB, MIB, parse_bytes, too_small

PARTS = {
    "compiled": "compiled steps",
    "tokens": "tokenised text",
    "answers": "answers of the compiler",
}
"""Map from a subfolder of the cache to its description. Missing entries are created again when they are needed."""
LIMIT = "PLIMSOLL_CACHE_LIMIT"
"""Environment variable with the size limit of the cache."""
DEFAULT_LIMIT_BYTES = 5 * GIB
IN_USE_SECONDS = 3600
"""Seconds for which an entry is kept after its last use, even above the limit. Training needs the functions that
planning has just compiled: compiling them again would need more memory."""
LOCK_OF_JAX = ".lockfile"
"""Name of JAX's lock file in the cache. The file is not an entry."""


def cache_folder() -> Path:
    """Returns the cache folder, which `PLIMSOLL_CACHE` may name, and creates it if it does not exist.

    Raises:
        PlimsollError: The folder cannot be created.
    """
    override = os.environ.get("PLIMSOLL_CACHE")
    folder = Path(override).expanduser() if override else user_cache_path("plimsoll", ensure_exists=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise PlimsollError(
            f"the cache folder {folder} cannot be made: {problem.strerror}. Compiled steps and tokenised text are"
            " kept there: name a folder you may write to with PLIMSOLL_CACHE"
        ) from None
    return folder


def limit_bytes() -> int:
    """Returns the size limit of the cache in bytes, which `PLIMSOLL_CACHE_LIMIT` may set.

    With a limit of 0, entries are removed an hour after their last use.

    Raises:
        PlimsollError: The variable is not a size, or lacks a unit.
    """
    given = os.environ.get(LIMIT)
    if not given:
        return DEFAULT_LIMIT_BYTES
    try:
        size = parse_bytes(given)
        if 0 < size < MIB:
            raise PlimsollError(too_small(given, "no cache"))
    except PlimsollError as problem:
        raise PlimsollError(f"{LIMIT} is the size that the cache may have, and {problem}") from None
    return size


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file or a folder of the cache that is removed as a whole."""

    part: str
    """Subfolder of the cache, a key of PARTS."""
    path: Path
    size_bytes: int
    used_ns: int
    """Time of the entry's last write or read, whichever is later, in nanoseconds since 1970."""


def entries(folder: Path) -> list[Entry]:
    """Returns the entries of a cache folder, whose total size is limited."""
    found = []
    for part in PARTS:
        files = _files(folder / part)
        if part == "tokens":
            texts = [path for path in (folder / part).glob("*") if path.is_dir()]
            found += [_entry(part, text, [path for path in files if path.is_relative_to(text)]) for text in texts]
        else:
            found += [_entry(part, path, [path]) for path in files]
    return [entry for entry in found if entry is not None]


def _files(folder: Path) -> list[Path]:
    """Returns all files below a folder, except JAX's lock file."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names if name != LOCK_OF_JAX]


def _entry(part: str, path: Path, files: list[Path]) -> Entry | None:
    """Returns an entry with its size and its last use; None if another process has removed it.

    Args:
        part: Subfolder of the cache, a key of PARTS.
        path: Path of the entry.
        files: Files of the entry.
    """
    try:
        sizes = [file.stat().st_size for file in files]
        status = path.stat()
    except FileNotFoundError:
        return None
    last_use = status.st_mtime_ns if path.is_dir() else max(status.st_atime_ns, status.st_mtime_ns)
    return Entry(part=part, path=path, size_bytes=sum(sizes), used_ns=last_use)


def prune(folder: Path, limit: int) -> int:
    """Removes the entries used least recently, until the cache is within its limit. Returns the removed bytes.

    Args:
        folder: The cache folder.
        limit: Size limit in bytes. Entries used in the last `IN_USE_SECONDS` are kept even above the limit.
    """
    by_use = sorted(entries(folder), key=lambda entry: entry.used_ns)
    total = sum(entry.size_bytes for entry in by_use)
    in_use = time.time_ns() - IN_USE_SECONDS * 10**9
    removed = 0
    for entry in by_use:
        if total - removed <= limit or entry.used_ns > in_use:
            break
        if _remove(entry):
            removed += entry.size_bytes
    return removed


def empty(folder: Path) -> tuple[list[Entry], list[Entry]]:
    """Removes all entries. Returns the removed entries, and the entries that could not be removed."""
    removed, kept = [], []
    for entry in entries(folder):
        (removed if _remove(entry) else kept).append(entry)
    return removed, kept


def _remove(entry: Entry) -> bool:
    """Removes an entry. Returns False if it cannot be removed. A process that has its files open can still read them.

    Removing a compiled function also removes all answers to `prepare` requests: such an answer promises that its plan's
    compiled functions are in the cache.
    """
    try:
        if entry.part == "tokens":
            return _remove_text(entry.path)
        if entry.part == "compiled":
            for answer in entry.path.parents[1].glob("answers/prepare-*"):
                answer.unlink(missing_ok=True)
        entry.path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _remove_text(text: Path) -> bool:
    """Removes the folder of a tokenised text. The folder is renamed first, so that no process finds half of it.

    Returns:
        False if another process has replaced the lock file meanwhile, else True.

    Raises:
        OSError: A process is writing the folder.
    """
    place = text.with_name(f"{text.name.removesuffix('.partial')}.lock")  # as in files/folder.py
    gone = text.with_name(f".removed-{text.name}-{os.getpid()}")
    with open(place, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock.fileno()), place.stat()):
            return False
        text.rename(gone)
        place.unlink()
    shutil.rmtree(gone)
    return True
