"""What may not happen while an input is read: seen through an audit hook, which Python calls before it does any of it.

Files that C libraries write are not seen by it; the folders beside the sandbox are looked at for these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzz_mutate import MARK

PROGRAMS = ("git", "uname", "lscpu")
"""That a session of a run asks for its provenance."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")


class Watch:
    """`allowed`: folders in which files may be written."""

    def __init__(self, *allowed: Path) -> None:
        self.allowed = [str(path.resolve()) for path in allowed]
        self.seen: list[str] = []
        self._on = False
        sys.addaudithook(self._heard)

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        self.seen = []
        self._on = True
        try:
            yield self.seen
        finally:
            self._on = False

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        self._on = False
        try:
            what = self._wrong(event, arguments)
        finally:
            self._on = True
        if what is not None:
            self.seen.append(what)

    def _wrong(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & WRITING)
            return f"wrote {path!r}" if writes and self._outside(path) else None
        if event in CHANGES:
            beside = next((part for part in arguments[1:] if isinstance(part, int) and part > 2), None)
            return f"{event} {arguments[:2]!r}" if self._outside(arguments[0], beside) else None
        if event == "pickle.find_class":
            return f"unpickled {arguments!r}"
        if event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"):
            program = Path(os.fsdecode(arguments[0] or "")).name
            return None if program in PROGRAMS else f"{event} {arguments[:2]!r}"
        if event in (
            "exec",
            "import",
        ):  # not "compile": NumPy parses the header of an .npy file so, and runs none of it
            return f"{event} of what was read" if _marked(arguments[0]) else None
        return None

    def _outside(self, path: Any, folder: int | None = None) -> bool:
        """`folder`: a descriptor that a relative path is relative to."""
        if isinstance(path, int):
            return False
        found = os.fsdecode(path)
        if folder is not None and not os.path.isabs(found):
            found = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), found)
        found = os.path.abspath(found)
        return found != os.devnull and not any(found.startswith(folder) for folder in self.allowed)


def _marked(code: Any) -> bool:
    """Source, a name, or code that has the mark as a name: as a constant it is only data."""
    if isinstance(code, bytes):
        return MARK.encode() in code
    if isinstance(code, str):
        return MARK in code
    return any(MARK in name for name in getattr(code, "co_names", ()))
