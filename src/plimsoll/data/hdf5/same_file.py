"""Whether an HDF5 file is still the one that a run began with.

Size and time of writing say so at once where they are what they were. Where they are not, what the file says of itself
and some of its rows decide: a copy is the same file, one that was made anew is not. Rows that were changed in between
those few are not noticed, but that the file was written is said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from plimsoll.data.hdf5.rows import Hdf5Rows
from plimsoll.errors import DataError

LOOKED_AT = 4
"""Chunks from all over the file, the first and the last among them."""


def identity(rows: Hdf5Rows) -> dict[str, Any]:
    """What `require_same` compares with, as JSON."""
    found = rows.path.stat()
    return {"bytes": found.st_size, "modified_ns": found.st_mtime_ns, "sha256": _digest(rows)}


def require_same(rows: Hdf5Rows, then: Mapping[str, Any]) -> str | None:
    """DataError where it is another file than `then`; a sentence where it was written since, and looks the same."""
    found = rows.path.stat()
    if (found.st_size, found.st_mtime_ns) == (then["bytes"], then["modified_ns"]):
        return None
    if _digest(rows) != then["sha256"]:
        raise DataError(
            f"{rows.path} changed since the run began: it has {len(rows):,} rows and {found.st_size:,} bytes (then"
            f" {then['bytes']:,}), and other attributes, shapes or rows. Put the old file back to go on, or start a new"
            " --run"
        )
    return (
        f"{rows.path} was written or copied since the run began; its attributes, its shapes and {LOOKED_AT} chunks of"
        " its rows are what they were"
    )


def _digest(rows: Hdf5Rows) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(rows.attributes.items()):
        digest.update(f"{name} {np.asarray(value).tolist()!r}\n".encode())
    digest.update(f"{len(rows)} {sorted(rows.spec.items())!r}\n".encode())
    _, count, span = rows.spans()
    for at in np.unique(np.linspace(0, count - 1, LOOKED_AT).round().astype(int)).tolist():
        for name, values in sorted(rows.read(at * span, min(len(rows), (at + 1) * span)).items()):
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
