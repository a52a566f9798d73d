"""Tests whether the data of a run is still what the run began with.

A run keeps facts of its data as JSON, and compares them with those of today. What is compared differs: a text has its
bytes (`files_facts`), an HDF5 file its rows (`Hdf5Rows.identity`), a prepared folder what it says of itself.

The times of writing of a text say nothing: a copy has another one, and a disk that loses a bit leaves it as it was.
Texts of up to WHOLE_BYTES are read whole, of larger ones three places in some of the files: what was changed between
these is not noticed.
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
"""Files that are read at most, from all over the list, where the text is larger than WHOLE_BYTES."""


def require_same_facts(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises DataError where one of the facts of a prepared folder is another than at the start of the run."""
    other = [fact for fact in now if then.get(fact) != now[fact]]
    if other:
        words = ", ".join(f"{fact} was {then.get(fact, 'unknown')} and is {now[fact]}" for fact in other)
        raise DataError(
            f"{name} is not the data of this run any more: {words}. Put the old folder back, or start a new --run"
        )


def require_same_files(name: str, files: Sequence[Path], then: Mapping[str, Any]) -> None:
    """Raises DataError where the files hold another text than at the start of the run."""
    now = files_facts(files)
    if now != dict(then):
        raise DataError(
            f"{name} changed since the run began: then {then['files']:,} files and {then['bytes']:,} bytes, now"
            f" {now['files']:,} and {now['bytes']:,}, with other text in them. Put the old files back to go on, or"
            " start a new --run"
        )


def files_facts(files: Sequence[Path]) -> dict[str, Any]:
    """Returns what `require_same_files` compares, as JSON: the number of files, their bytes, and a digest of both."""
    sizes = [path.stat().st_size for path in files]
    whole = sum(sizes) <= WHOLE_BYTES
    chosen = range(len(files)) if whole else sorted({at * len(files) // FILES for at in range(FILES)})
    digest = hashlib.sha256(repr(sizes).encode())
    for index in chosen:
        path, size = files[index], sizes[index]
        try:
            with open(path, "rb") as file:
                if whole:
                    while block := file.read(MIB):
                        digest.update(block)
                else:
                    for place in sorted({0, max(0, size // 2), max(0, size - PLACE_BYTES)}):
                        file.seek(place)
                        digest.update(file.read(PLACE_BYTES))
        except OSError as problem:
            raise DataError(f"{path} cannot be read ({problem.strerror}): put it back, or start a new --run") from None
    return {"files": len(files), "bytes": sum(sizes), "sha256": digest.hexdigest()}
