"""Writes an HDF5 file with a known number of rows, in their order. The file is complete or absent.

An unfinished file is called `NAME.partial`. Other writers wait for it. If its writer is killed, the next starts anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import h5py
import numpy as np

from plimsoll.data.hdf5.rows import opened
from plimsoll.errors import DataError, StoppedError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import disk_full, free_bytes, locked, partial_of, stopped_if_full
from plimsoll.units import MIB

MADE_WITH = "made_with"
"""Attribute of a file with the facts that determine its content, as JSON."""
LEAST_FREE = 16 * MIB
"""Bytes of the disk that must stay free after each write, because a failed write crashes HDF5."""


@dataclass(frozen=True)
class Column:
    """Shape and dtype of one row of a dataset."""

    shape: tuple[int, ...]
    dtype: str


@contextmanager
def new_file(
    path: Path,
    columns: Mapping[str, Column],
    *,
    rows: int,
    made_with: Facts,
    chunk_rows: int,
    compression: str | None,
) -> Iterator[RowWriter]:
    """Yields a writer of a file. All rows must be written before the `with` block ends; then the file is renamed.

    Args:
        made_with: All facts that determine the content. `is_finished` compares them.
        compression: Name of an h5py filter; None for no compression.

    Raises:
        DataError: The file exists.
        StoppedError: The disk became full. The partial file is removed.
    """
    partial = partial_of(path)
    with locked(path), stopped_if_full(path), ExitStack() as files:
        if path.exists():
            raise DataError(f"{path} is there already: name another --out, or remove it")
        files.callback(partial.unlink, missing_ok=True)
        file = files.enter_context(h5py.File(partial, "w", libver="latest"))

        # Give each chunk a checksum, since LZF decompresses damaged chunks to wrong numbers without an error.
        for name, column in columns.items():
            file.create_dataset(
                name,
                (rows, *column.shape),
                column.dtype,
                chunks=(min(chunk_rows, rows), *column.shape),
                compression=compression,
                fletcher32=True,
            )
        file.attrs[MADE_WITH] = json.dumps(made_with.to_json(), sort_keys=True)
        writer = RowWriter(path, file)
        yield writer

        # Rename the file only once it is complete.
        if writer.done != rows:
            raise AssertionError(f"{writer.done} of {rows} rows")
        file.close()
        partial.replace(path)


class RowWriter:
    """Writes the rows of a new file in their order."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path = path
        self.file = file
        """The open file, to which the caller may add attributes and small arrays."""
        self.done = 0
        """Number of rows written."""

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Writes the next rows of every column. Writing complete chunks is fastest."""
        size = sum(values.nbytes for values in rows.values())
        if free_bytes(self.path) < LEAST_FREE + 2 * size:
            raise StoppedError(disk_full(self.path))

        end = self.done + len(next(iter(rows.values())))
        for name, values in rows.items():
            dataset = cast(h5py.Dataset, self.file[name])
            dataset[self.done : end] = values
        self.done = end


def is_finished(path: Path, made_with: Facts) -> bool:
    """Returns True if the file exists and was made with these facts, False if it is absent; else raises DataError."""
    if not path.exists():
        return False
    with opened(path) as file:
        difference = "does not say what it was made with"
        if MADE_WITH in file.attrs:
            then = Facts.from_json(json.loads(str(file.attrs[MADE_WITH])))
            difference = then.difference(made_with)
    if difference:
        raise DataError(f"{path} is there already, and {difference}: name another --out, or remove it")
    return True
