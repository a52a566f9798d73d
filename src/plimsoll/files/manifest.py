"""Manifests: checksums of all files of a folder, written last. A folder without one was never finished."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

MANIFEST = "manifest.json"


def finish(folder: Path) -> None:
    """Writes the manifest of a folder whose other files are complete."""
    text = json.dumps(checksums(folder), indent=1)
    replace_file(folder / MANIFEST, text)
    flush_folder(folder)


def is_finished(folder: Path) -> bool:
    """Returns whether the folder has its manifest."""
    return (folder / MANIFEST).exists()


def remove(folder: Path) -> None:
    """Removes a folder, its manifest first: cut off, it leaves one that was never finished."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """Returns what is wrong with a folder, in a few words; None if it is as it was written. Reads every byte."""
    try:
        text = (folder / MANIFEST).read_text()
        expected = dict(json.loads(text))
    except (OSError, ValueError, TypeError):
        return f"{MANIFEST} cannot be read"

    # The same files, with the same content.
    found = checksums(folder)
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if found[name] != expected.get(name):
            return f"{name} has changed since it was written"
    return None


def checksums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file but the manifest, by its path in the folder."""
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
    """Writes a file that is there whole or not at all, also after a power cut."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def flush_folder(folder: Path) -> None:
    """Waits until the names in a folder are on disk: of new files, of renamed ones."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
