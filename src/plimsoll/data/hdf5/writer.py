"""An HDF5 file of known length that is filled from the beginning, and can be continued after its process was killed.

It is written in HDF5's single-writer mode (SWMR): data before what points to it, so that the disk holds a whole file at
every moment. `mark` records how many rows are good; a process that continues overwrites what came after them. While
it grows it is called `NAME.partial`; `finish` renames it. A lock file beside it admits one writing process at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np

from plimsoll.data.disk import free_bytes, other_options, writing
from plimsoll.data.hdf5.compression import Encode, compressed, library, threads
from plimsoll.data.hdf5.rows import DONE, opened
from plimsoll.errors import DataError, StoppedError
from plimsoll.units import MIB, format_bytes

MADE_WITH = "made_with"
"""Attribute of a file that holds, as JSON, what its content follows from."""
LEAST_FREE = 16 * MIB
"""Bytes of the disk that stay free besides the rows in flight: HDF5 does not survive a write that fails."""


@dataclass(frozen=True)
class Column:
    """A dataset: `shape` and `dtype` of one row, and what rows that were never written read as."""

    shape: tuple[int, ...]
    dtype: str
    fill: float | None = None
    encode: Encode | None = field(default=None, compare=False)
    """An LZF encoder that knows what repeats in a chunk of this column, and need not search for it."""


class GrowingFile:
    """A file on its way. `made_with` is what its content follows from: with anything else it is not continued."""

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, Column],
        *,
        rows: int,
        made_with: Mapping[str, Any],
        chunk_rows: int,
        compression: str | None,
    ) -> None:
        self.path, self.rows, self.columns = path, rows, columns
        self.partial = path.with_name(f"{path.name}.partial")
        self._made_with = json.dumps(made_with, sort_keys=True)
        self._chunk_rows, self._compression = chunk_rows, compression
        self.done = 0
        """Rows that are marked as good."""
        self.threads = threads() if compression == "lzf" else 0
        """Chunks that are compressed at the same time; 0 where h5py does it."""
        self._pool = ThreadPoolExecutor(max(1, self.threads))
        self._in_flight: deque[tuple[int, Future[dict[str, tuple[bytes, int]]]]] = deque()
        """First rows of the chunks that are being compressed, oldest first."""

    def __enter__(self) -> GrowingFile:
        if self.path.exists():
            raise DataError(f"{self.path} is there already: name another --out, or remove it")
        with contextlib.ExitStack() as stack:
            files = stack.enter_context(writing(self.path, self._full))
            self.file = self._opened()
            """The file, for attributes and small arrays before the first row."""
            files.callback(self.file.close)
            files.callback(self._pool.shutdown, wait=True, cancel_futures=True)
            self._datasets = {name: cast(h5py.Dataset, self.file[name]) for name in self.columns}
            self.done = self._at = int(np.asarray(self.file.attrs[DONE]))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._stack.__exit__(*problem)

    def begin(self) -> None:
        """Enters single-writer mode: from here on rows are written, and no attribute or array is added."""
        self.file.swmr_mode = True

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Writes the next rows: a whole chunk, but for the last. The arrays must not be changed afterwards."""
        count = len(next(iter(rows.values())))
        size = sum(values.nbytes for values in rows.values())
        if free_bytes(self.path) < LEAST_FREE + (2 * self.threads + 2) * size:
            self.mark()
            raise StoppedError(self._full())
        if self.threads and count == self._chunk_rows and not self._at % count:
            chunk = {name: values.astype(self.columns[name].dtype, copy=False) for name, values in rows.items()}
            encoders = {name: self.columns[name].encode for name in rows}
            packing = self._pool.submit(
                lambda: {name: compressed(values, encoders[name]) for name, values in chunk.items()}
            )
            self._in_flight.append((self._at, packing))
        else:
            for name, values in rows.items():
                self._datasets[name][self._at : self._at + count] = values
        self._at += count
        self._write_compressed(leave=2 * self.threads)

    def mark(self) -> None:
        """Records that what was appended so far is good: it survives a kill."""
        self._write_compressed(leave=0)
        for dataset in self._datasets.values():
            dataset.flush()
        self.file.attrs.modify(DONE, self._at)
        self.file.flush()
        self.done = self._at

    def finish(self) -> None:
        """Marks the last rows, and gives the file its name."""
        if self._at != self.rows:
            raise AssertionError(f"{self._at} of {self.rows} rows")
        self.mark()
        self.file.close()
        self.partial.replace(self.path)

    def _write_compressed(self, *, leave: int) -> None:
        """Writes compressed chunks in their order until at most `leave` are in flight."""
        while len(self._in_flight) > leave:
            at, packing = self._in_flight.popleft()
            for name, (data, mask) in packing.result().items():
                place = (at, *(0 for _ in self.columns[name].shape))
                self._datasets[name].id.write_direct_chunk(place, data, filter_mask=mask)

    def _full(self) -> str:
        return (
            f"the disk is full ({format_bytes(free_bytes(self.path))} free at {self.path.parent}): {self.done:,} of"
            f" {self.rows:,} rows are good in {self.partial.name}. Make room, and run the same command again to"
            " continue"
        )

    def _opened(self) -> h5py.File:
        """Opens the file where a killed process left it, or a new one."""
        if not self.partial.exists():
            unfinished = self.partial.with_suffix(".new")
            with h5py.File(unfinished, "w", libver="latest") as file:
                for name, column in self.columns.items():
                    file.create_dataset(
                        name,
                        (self.rows, *column.shape),
                        column.dtype,
                        chunks=(min(self._chunk_rows, self.rows), *column.shape),
                        compression=self._compression,
                        fletcher32=True,  # LZF decompresses what is damaged to something else, without an error
                        fillvalue=column.fill,
                    )
                file.attrs[DONE], file.attrs[MADE_WITH] = 0, self._made_with
            unfinished.replace(self.partial)
            return h5py.File(self.partial, "r+", libver="latest")
        try:
            file = reopened(self.partial)
        except OSError as problem:
            raise DataError(f"{self.partial} cannot be continued ({problem}): remove it, and begin anew") from None
        others = other_options(json.loads(str(file.attrs[MADE_WITH])), json.loads(self._made_with))
        if others:
            file.close()
            raise DataError(
                f"{self.partial} was begun with other options, {others}: use the same ones to continue it, name another"
                " --out, or remove it"
            )
        return file


def reopened(path: Path) -> h5py.File:
    """Opens for writing a file that a killed process left marked as open, with its end perhaps not yet recorded.

    HDF5 writes the index of chunks before the file's length. A kill between the two leaves chunks behind the recorded
    end, and new ones would be written over them: the end becomes that of the file on the disk. Both are what HDF5's own
    `h5clear --status --increment=0` does; h5py has no name for either. OSError where the file is damaged.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)  # as h5py opens files itself
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    clear, extend = library("H5Pset"), library("H5Fincrement_filesize")
    yes = ctypes.byref(ctypes.c_bool(True))
    if clear is None or extend is None or clear(access.id, b"clear_status_flags", yes) < 0:
        return h5py.File(path, "r+", libver="latest")  # OSError names `h5clear`, which comes with HDF5
    file = h5py.File(h5py.h5f.open(str(path).encode(), h5py.h5f.ACC_RDWR, access))
    if extend(file.id.id, 0) < 0:
        file.close()
        raise OSError("HDF5 does not set the length of the file to that on the disk")
    return file


def is_finished(path: Path, made_with: Mapping[str, Any]) -> bool:
    """Tells whether the file is there, whole, and made with these options. DataError where it was made with others."""
    if not path.exists():
        return False
    with opened(path) as file:
        others = "which it does not name"
        if MADE_WITH in file.attrs:
            others = other_options(json.loads(str(file.attrs[MADE_WITH])), made_with)
    if others:
        raise DataError(f"{path} is there already, made with other options, {others}: name another --out, or remove it")
    return True
