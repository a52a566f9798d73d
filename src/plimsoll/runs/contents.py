"""What belongs to a run folder, by checksum: what a mirror sends, fetches and compares."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINKED = "checkpoints/step-"
"""How the names of files begin that nothing changes once they are there: a hard link keeps them while they are sent."""


@dataclass(frozen=True)
class Content:
    """What is in a file."""

    bytes: int
    sha256: str


Files = dict[str, Content]
"""By their names in the run folder."""
Seen = dict[str, tuple[list[int], Content]]
"""With the size, time and inode that a file had when it was read last."""


def contents(folder: Path, seen: Seen) -> Files:
    """Of all that belongs to a run there. What `seen` knows, and nobody touched since, is not read again."""
    found = {}
    for name in names(folder):
        with contextlib.suppress(FileNotFoundError):
            stat = stat_of(folder / name)
            if name not in seen or seen[name][0] != stat:
                seen[name] = stat, content_of(folder / name)
            found[name] = seen[name][1]
    return found


def names(folder: Path) -> Iterator[str]:
    """Neither locks, nor what is being written, nor what was set aside, nor links to elsewhere."""
    for path, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(".") and not name.endswith(".damaged"))
        for name in sorted(files):
            whole = Path(path) / name
            if not name.startswith(".") and not name.endswith(".new") and whole.is_file() and not whole.is_symlink():
                yield whole.relative_to(folder).as_posix()


def duplicate(path: Path, copy: Path, name: str) -> None:
    copy.unlink(missing_ok=True)  # it may be a link itself
    if name.startswith(LINKED):
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(path, copy)
            return
    shutil.copyfile(path, copy)


def stat_of(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def content_of(path: Path) -> Content:
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return Content(os.fstat(file.fileno()).st_size, checksum)
