"""The folder in which plimsoll keeps what it can make again, and its limit: what was used least recently goes first.

    answers/     what compile processes answered, JSON, and the rates that were measured
    compiled/    compiled functions, ours and JAX's; in a folder there, XLA's timings of a card's kernels
    tokens/      a folder for each text that was tokenised once

The limit is for these. Beside them is `runs/`, the runs of buckets, which may be ahead of their bucket: it stays. An
entry is one file, or the folder of one text.
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
"""Parts that are made again where they are missing, and their names in words."""
LIMIT = "PLIMSOLL_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 5 * GIB
IN_USE_SECONDS = 3600
"""Time after its last use for which an entry stays, even above the limit: training loads what was compiled for it just
before, and would need the memory of a compiler without it."""
LOCK_OF_JAX = ".lockfile"


def cache_folder() -> Path:
    """Returns the folder of the cache, which `PLIMSOLL_CACHE` may name. Makes it if need be."""
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
    """Returns the size that the cache may have, which `PLIMSOLL_CACHE_LIMIT` may set; 0 keeps nothing.

    Raises:
        PlimsollError: It is set to something that is no size, or to one that lacks its unit.
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
    """A part of the cache that is removed as a whole."""

    part: str
    """A key of PARTS."""
    path: Path
    size_bytes: int
    used_ns: int
    """Time of its last use, in nanoseconds since 1970: the later of the times of writing and of reading."""


def entries(folder: Path) -> list[Entry]:
    """Returns what the limit of the cache is for."""
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
    """Returns all files below a folder, but for those that another process removes meanwhile."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names if name != LOCK_OF_JAX]


def _entry(part: str, path: Path, files: list[Path]) -> Entry | None:
    """Returns an entry of these files; None where another process has removed it."""
    try:
        sizes = [file.stat().st_size for file in files]
        status = path.stat()
    except FileNotFoundError:
        return None
    last_use = status.st_mtime_ns if path.is_dir() else max(status.st_atime_ns, status.st_mtime_ns)
    return Entry(part=part, path=path, size_bytes=sum(sizes), used_ns=last_use)


def prune(folder: Path, limit: int) -> int:
    """Removes what was used least recently until the rest is within the limit, and returns the bytes that it removed.

    Args:
        folder: The cache folder.
        limit: Bytes that may stay. What was used in the last `IN_USE_SECONDS` does in any case.
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
    """Removes all entries. Returns those that were removed, and those that were not: a process is making them."""
    removed, kept = [], []
    for entry in entries(folder):
        (removed if _remove(entry) else kept).append(entry)
    return removed, kept


def _remove(entry: Entry) -> bool:
    """Removes an entry, and returns whether it did. What a process has open stays readable for it.

    With a compiled step go the answers that one is ready for training (`planner.types.Preparation`).
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
    """Removes a text, of which none is half there under its own name. Raises OSError where a process is making it."""
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
