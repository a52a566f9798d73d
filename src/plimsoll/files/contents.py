"""Size and checksum of a file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Content:
    """Size and checksum of a file."""

    bytes: int
    sha256: str


def content_of(path: Path) -> Content:
    """Reads a file and returns its size and checksum."""
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return Content(os.fstat(file.fileno()).st_size, checksum)
