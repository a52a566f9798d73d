"""Whether files are as they were written: what a cache keeps is read by other runs, weeks later.

`checked.json`, written last, has the SHA-256 of its files, and when they last changed. Files that did not change since
are not read again; of others (copied, restored, written to) all is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from plimsoll.data import in_short
from plimsoll.errors import DataError

Kept = TypeVar("Kept")
CHECKED = "checked.json"


def _state(path: Path) -> list[int]:
    """Returns size and time of the last change of a file: the latter no program can set back."""
    status = path.stat()
    return [status.st_size, status.st_ctime_ns]


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def note_unchanged(folder: Path, names: Iterable[str]) -> None:
    """Writes the digests of the files, and when they last changed, into the folder that they complete."""
    _note(folder, {name: _digest(folder / name) for name in names})


def _note(folder: Path, digests: Mapping[str, str]) -> None:
    files = {name: {"state": _state(folder / name), "sha256": digest} for name, digest in digests.items()}
    new = folder / f"{CHECKED}.{os.getpid()}.new"
    new.write_text(json.dumps(files))
    new.replace(folder / CHECKED)


def opened(folder: Path, last: str, open_folder: Callable[[Path], Kept]) -> Kept | None:
    """Returns what a folder of the cache holds, and notes its use; None if there is none.

    Args:
        folder: The folder.
        last: File that is written last, so that a folder without it is none.
        open_folder: Function that opens the folder.

    Raises:
        DataError: It is damaged.
    """
    if not (folder / last).is_file():
        return None
    found = open_folder(folder)
    require_unchanged(folder)
    with suppress(OSError):  # another user's
        os.utime(folder)
    return found


def require_unchanged(folder: Path) -> None:
    """Raises DataError where a file is not as it was written."""
    path = folder / CHECKED
    try:
        files = json.loads(path.read_text("utf-8"))
        if all(_state(folder / name) == file["state"] for name, file in files.items()):
            return
        digests = {name: file["sha256"] for name, file in files.items()}
        for name, digest in digests.items():
            if _digest(folder / name) != digest:
                raise DataError(f"{folder / name} is not as it was written: its SHA-256 is another")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise DataError(
            f"{path} does not say whether the files are as they were written: {in_short(problem)}"
        ) from None
    with suppress(OSError):
        _note(folder, digests)
