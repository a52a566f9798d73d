"""Whether the files of a text are still those that a run began with, by their bytes.

Their times say nothing: a copy has another one, and a disk that loses a bit leaves it as it was. Texts of up to
WHOLE_BYTES are read whole, of larger ones three places in some of the files: what was changed between these is not
noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.units import KIB, MIB

WHOLE_BYTES = 64 * MIB
PLACE_BYTES = 64 * KIB
FILES = 256
"""Looked into at most, from all over the list, where the text is larger than WHOLE_BYTES."""


def identity(files: Sequence[Path]) -> dict[str, Any]:
    """What `require_same` compares with, as JSON."""
    sizes = [path.stat().st_size for path in files]
    whole = sum(sizes) <= WHOLE_BYTES
    chosen = range(len(files)) if whole else sorted({at * len(files) // FILES for at in range(FILES)})
    digest = hashlib.sha256(repr(sizes).encode())
    for index in chosen:
        _add(digest, files[index], [0] if whole else _places(sizes[index]), None if whole else PLACE_BYTES)
    return {"files": len(files), "bytes": sum(sizes), "sha256": digest.hexdigest()}


def require_same(name: str, files: Sequence[Path], then: Mapping[str, Any]) -> None:
    """DataError where it is another text than `then`."""
    now = identity(files)
    if now == dict(then):
        return
    raise DataError(
        f"{name} changed since the run began: then {then['files']:,} files and {then['bytes']:,} bytes, now"
        f" {now['files']:,} and {now['bytes']:,}, with other text in them. Put the old files back to go on, or"
        " start a new --run"
    )


def _add(digest: Any, path: Path, places: Sequence[int], length: int | None) -> None:
    try:
        with open(path, "rb") as file:
            for place in places:
                file.seek(place)
                left = length
                while block := file.read(MIB if left is None else min(left, MIB)):
                    digest.update(block)
                    left = None if left is None else left - len(block)
    except OSError as problem:
        raise DataError(f"{path} cannot be read ({problem.strerror}): put it back, or start a new --run") from None


def _places(size: int) -> list[int]:
    """The beginning, the middle and the end."""
    return sorted({0, max(0, size // 2), max(0, size - PLACE_BYTES)})
