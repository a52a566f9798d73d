"""Manifests. A manifest has the checksums of all other files of its folder, and is written after them.

A folder without a manifest is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

MANIFEST = "manifest.json"
"""Name of a folder's manifest."""


def finish(folder: Path) -> None:
    """Writes the manifest of a folder. All other files of the folder must be complete."""
    text = json.dumps(checksums(folder), indent=1)
    replace_file(folder / MANIFEST, text)
    flush_folder(folder)


def is_finished(folder: Path) -> bool:
    """Returns True if the folder has a manifest."""
    return (folder / MANIFEST).exists()


def remove(folder: Path) -> None:
    """Removes a folder. The manifest is removed first, so that an interrupted removal leaves an unfinished folder."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """Compares all bytes of a folder with its manifest. Returns a description of the damage; None without damage."""
    try:
        text = (folder / MANIFEST).read_text()
        expected = dict(json.loads(text))
    except (OSError, ValueError, TypeError):
        return f"{MANIFEST} cannot be read"

    # Compare names and checksums of all files.
    found = checksums(folder)
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if found[name] != expected.get(name):
            return f"{name} has changed since it was written"
    return None


def checksums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file in a folder except the manifest, by path relative to the folder."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(MANIFEST):
            sums[name] = checksum(path)
    return sums


def checksum(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_file(path: Path, text: str) -> None:
    """Replaces a file atomically. The new content is on disk before the old file is replaced."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def flush_folder(folder: Path) -> None:
    """Flushes the list of a folder's files to disk, so that created and renamed files survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
