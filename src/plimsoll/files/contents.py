"""Files that belong to a run folder, with their checksums: what a mirror sends, fetches and compares."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IMMUTABLE = "checkpoints/step-"
"""Prefix of the names of files that never change once they are written. A hard link keeps them while they are sent."""


@dataclass(frozen=True)
class Content:
    """Size and checksum of a file."""

    bytes: int
    sha256: str


Files = dict[str, Content]
"""Contents of files, by their names relative to the run folder."""
Seen = dict[str, tuple[list[int], Content]]
"""Contents of files as they were last read, each with the size, time and inode that the file had then."""


def contents(folder: Path, seen: Seen) -> Files:
    """Returns the contents of all files that belong to the run in `folder`.

    A file whose size, time and inode are as in `seen` is not read again. Every file that is read is added to `seen`.
    """
    files = {}
    for name in names(folder):
        with contextlib.suppress(FileNotFoundError):
            stat = stat_of(folder / name)
            if name not in seen or seen[name][0] != stat:
                seen[name] = stat, content_of(folder / name)
            files[name] = seen[name][1]
    return files


def names(folder: Path) -> Iterator[str]:
    """Yields the names of the files that belong to the run in `folder`.

    Left out are locks and other hidden files, files that are being written (`.new`), damaged checkpoints that were set
    aside, and symbolic links.
    """
    for path, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(".") and not name.endswith(".damaged"))
        for name in sorted(files):
            whole = Path(path) / name
            if not name.startswith(".") and not name.endswith(".new") and whole.is_file() and not whole.is_symlink():
                yield whole.relative_to(folder).as_posix()


def duplicate(path: Path, copy: Path, name: str) -> None:
    """Makes `copy` a file with the content that `path` has now: a hard link if `name` is of an immutable file."""
    copy.unlink(missing_ok=True)  # it may be a link itself
    if name.startswith(IMMUTABLE):
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(path, copy)
            return
    shutil.copyfile(path, copy)


def stat_of(path: Path) -> list[int]:
    """Returns the size, modification time and inode of a file, by which a change is noticed without reading it."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def content_of(path: Path) -> Content:
    """Reads a file and returns its size and checksum."""
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return Content(os.fstat(file.fileno()).st_size, checksum)
