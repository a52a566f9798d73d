"""The folder in which plimsoll keeps what it can make again, and its limit: what was used least recently goes first.

    answers/     what compile processes answered, JSON, and the rates that were measured
    compiled/    JAX's compiled steps; in a folder there, XLA's timings of a card's kernels
    tokens/      a folder for each text that was tokenised once

The limit is for these. Beside them is `runs/`, the runs of buckets, which may be ahead of their bucket: it stays. An
entry is one file, or the folder of one text.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from plimsoll.errors import PlimsollError
from plimsoll.units import GIB, MIB, parse_bytes, too_small

PARTS = {
    "compiled": "compiled steps",
    "autotuning": "timings of a card's kernels",
    "tokens": "tokenised text",
    "answers": "answers of the compiler",
}
"""Parts that are made again where they are missing, and their names in words."""
LIMIT, DEFAULT_LIMIT_BYTES = "PLIMSOLL_CACHE_LIMIT", 5 * GIB
IN_USE_SECONDS = 3600
"""Time after its last use for which an entry stays, even above the limit: training loads what was compiled for it just
before, and would need the memory of a compiler without it."""
WRITTEN_SECONDS = 5
"""Time after which a compiled step that is not whole is no longer being written, which takes milliseconds."""
_REMOVED = ".removed-"
"""Beginning of the name of a folder that is being removed: none is half there under its own name."""
_AUTOTUNING = "compiled/xla_gpu_per_fusion_autotune_cache_dir"
"""Folder that JAX has XLA use (its setting jax_persistent_cache_enable_xla_caches)."""
_STEP, _TIME, _OF_JAX = "-cache", "-atime", {".lockfile"}
"""Ends of the names of JAX's files, and its lock: the time of use that it writes beside a step, if a user sets a limit
of its own (jax_compilation_cache_max_size), goes with the step, or it could add nothing any more."""
_STATE = "limit.json"
"""File that says what the cache was like when it was last held against its limit; whoever does that locks it."""


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
    """Time of its last use, in nanoseconds since 1970."""
    made_ns: int
    """Time when it was written."""


def entries(folder: Path) -> list[Entry]:
    """Returns what the limit of the cache is for. A last use is the later of the times of writing and of reading."""
    found = [_of_file("answers", file) for file in _inside(folder / "answers")]
    found += [_of_file("compiled", file) for file in _inside(folder / "compiled")]
    for place, _, names in os.walk(folder / _AUTOTUNING):
        found += [_of_file("autotuning", Path(place, name)) for name in names]
    found += [_of_text(text) for text in _inside(folder / "tokens")]
    return [entry for entry in found if entry is not None]


def prune(folder: Path, limit: int) -> int:
    """Removes what was used least recently until the rest is within the limit, and returns the bytes that it removed.

    Costs the time of a few `stat` calls unless something was added since it last looked; then, that of one for each
    file. Another process that does the same at this moment is left to do it.

    Args:
        folder: The cache folder.
        limit: Bytes that may stay. What was used in the last `IN_USE_SECONDS` does in any case.
    """
    removed = 0
    with contextlib.suppress(OSError), open(folder / _STATE, "a+") as state:  # it may be read-only: nothing was added
        fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state.seek(0)
        before, now = state.read(), json.dumps([limit, *_times(folder)])
        if before == now:
            return 0
        since_ns = os.fstat(state.fileno()).st_mtime_ns - IN_USE_SECONDS * 10**9
        found = sorted(_whole(entries(folder), since_ns), key=lambda entry: entry.used_ns)
        total, in_use = sum(entry.size_bytes for entry in found), time.time_ns() - IN_USE_SECONDS * 10**9
        for entry in found:
            if total - removed <= limit or entry.used_ns > in_use:
                break
            removed += entry.size_bytes if _remove(entry) else 0
        state.truncate(0)  # written is how it was before: what was added meanwhile is looked at next time
        state.write(now if total - removed <= limit else "above the limit: looks again")
    return removed


def empty(folder: Path) -> tuple[list[Entry], list[Entry]]:
    """Removes all entries. Returns those that were removed, and those that were not: a process is making them."""
    removed, kept = [], []
    for entry in entries(folder):
        (removed if _remove(entry) else kept).append(entry)
    return removed, kept


def _whole(found: list[Entry], since_ns: int) -> list[Entry]:
    """Removes compiled steps that were used since then and are not whole, and returns all other entries.

    JAX writes a step in place and never replaces it: a full disk or a killed process leaves its beginning for good, of
    which JAX warns, and compiles the step anew, in every process.
    """
    import zstandard

    whole, written_by_ns = [], time.time_ns() - WRITTEN_SECONDS * 10**9
    for entry in found:
        try:
            if entry.part == "compiled" and since_ns <= entry.used_ns and entry.made_ns < written_by_ns:
                content = entry.path.read_bytes()
                if content.startswith(zstandard.FRAME_HEADER) or not content:
                    zstandard.ZstdDecompressor().decompress(content)
        except zstandard.ZstdError:
            _remove(entry)
        except OSError:  # another process has removed it
            continue
        else:
            whole.append(entry)
    return whole


def _times(folder: Path) -> list[int]:
    """Returns when something was last added to each of the cache's folders, or removed from it."""
    places = (_status(folder / name) for name in ("answers", "compiled", _AUTOTUNING, "tokens"))
    return [place.st_mtime_ns if place else 0 for place in places]


def _inside(folder: Path) -> list[Path]:
    """Returns what a folder holds; nothing where there is none."""
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):  # another process has removed it
        return path.stat()
    return None


def _of_file(part: str, path: Path) -> Entry | None:
    status = _status(path)
    if status is None or not stat.S_ISREG(status.st_mode) or path.name in _OF_JAX or path.name.endswith(_TIME):
        return None
    used = max(status.st_atime_ns, status.st_mtime_ns)
    return Entry(part=part, path=path, size_bytes=status.st_size, used_ns=used, made_ns=status.st_mtime_ns)


def _of_text(path: Path) -> Entry | None:
    status = _status(path)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return None
    places = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    files = [inside for file in places if (inside := _status(file))]
    size, used = sum(file.st_size for file in files), 0 if path.name.startswith(_REMOVED) else status.st_mtime_ns
    return Entry(part="tokens", path=path, size_bytes=size, used_ns=used, made_ns=used)


def _remove(entry: Entry) -> bool:
    """Removes an entry, and returns whether it did. What a process has open stays readable for it.

    With a compiled step go the answers that one is ready for training (`planner.types.Preparation`).
    """
    path = entry.path
    try:
        if entry.part == "compiled":
            for answer in (path.parents[1] / "answers").glob("prepare-*"):
                answer.unlink(missing_ok=True)
        if entry.part == "tokens":
            return _remove_text(path)
        path.unlink(missing_ok=True)
        if path.name.endswith(_STEP):
            path.with_name(path.name.removesuffix(_STEP) + _TIME).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _remove_text(path: Path) -> bool:
    if not path.name.startswith(_REMOVED):
        place = path.with_name(f"{path.name.removesuffix('.partial')}.lock")  # as in files/folder.py
        gone = path.with_name(f"{_REMOVED}{path.name}-{os.getpid()}")
        with open(place, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: a process is making it
            if not os.path.samestat(os.fstat(lock.fileno()), place.stat()):
                return False
            path.rename(gone)
            place.unlink()
        path = gone
    shutil.rmtree(path)
    return True
