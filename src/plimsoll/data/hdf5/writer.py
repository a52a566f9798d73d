"""An HDF5 file of known length that is filled from the beginning, and can be continued after its process was killed.

It is written as HDF5's single-writer mode has it (SWMR): data before what points to it, so that what stands on the disk
is a whole file at every moment. `mark` says how far it is good; a process that continues drops what came after. While
it grows it is called `NAME.partial`; `finish` gives it its name. One process at a time: a lock beside it says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from plimsoll.data.disk import free_bytes, is_full, locked
from plimsoll.data.hdf5.compression import Packed, Packer, Quicker
from plimsoll.data.hdf5.rows import opened
from plimsoll.errors import DataError, StoppedError
from plimsoll.units import MIB, format_bytes

DONE, MADE_WITH = "rows_written", "made_with"
LEAST_FREE = 16 * MIB
"""Of the disk, besides the rows that are on their way: HDF5 does not survive a write that fails, so none is tried."""


@dataclass(frozen=True)
class Column:
    """A dataset: `shape` and `dtype` of one row, and what rows that were never written read as."""

    shape: tuple[int, ...]
    dtype: str
    fill: float | None = None
    quicker: Quicker | None = field(default=None, compare=False)
    """How a chunk is packed with lzf without a search for what repeats."""


class GrowingFile:
    """`made_with` is what its content follows from: a file that was begun with anything else is not continued."""

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
        self._packer = Packer(0 if compression != "lzf" else None)
        self._quicker = {name: one.quicker for name, one in columns.items() if one.quicker is not None}
        self._packing: deque[tuple[int, Future[dict[str, Packed]]]] = deque()

    def __enter__(self) -> GrowingFile:
        if self.path.exists():
            raise DataError(f"{self.path} is there already: name another --out, or remove it")
        self._lock = locked(self.path)
        try:
            self._file = self._continued() if self.partial.exists() else self._begun()
            self.done = self._at = int(np.asarray(self._file.attrs[DONE]))
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        self._packer.__exit__(kind, problem, None)
        with contextlib.suppress(OSError, RuntimeError):  # a full disk: what was marked is good
            self._file.close()
        self._lock.close()
        with contextlib.suppress(OSError):
            os.unlink(self._lock.name)
        if isinstance(problem, OSError) and is_full(problem):
            raise StoppedError(self._full()) from None

    def attribute(self, name: str, value: Any, *, group: str = "/") -> None:
        """Before the first row."""
        self._file.require_group(group).attrs[name] = value

    def array(self, name: str, values: np.ndarray) -> None:
        """A small dataset of its own; before the first row."""
        if name not in self._file:
            self._file[name] = values

    def begin(self) -> None:
        """From here on rows are written and nothing is added."""
        self._file.swmr_mode = True

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """A whole chunk, but for the last rows of all. They must not be changed afterwards."""
        count = len(next(iter(rows.values())))
        size = sum(values.nbytes for values in rows.values())
        if free_bytes(self.path) < LEAST_FREE + (2 * self._packer.threads + 2) * size:
            self.mark()
            raise StoppedError(self._full())
        if self._packer.threads and count == self._chunk_rows and not self._at % count:
            self._packing.append((self._at, self._packer.packed(self._as_stored(rows), self._quicker)))
        else:
            for name, values in rows.items():
                self._dataset(name)[self._at : self._at + count] = values
        self._at += count
        self._write_packed(most=2 * self._packer.threads)

    def _full(self) -> str:
        return (
            f"the disk is full ({format_bytes(free_bytes(self.path))} free at {self.path.parent}): {self.done:,} of"
            f" {self.rows:,} rows are good in {self.partial.name}. Make room, and run the same command again to"
            " continue"
        )

    def _write_packed(self, *, most: int) -> None:
        """Until so many are still being packed, in their order."""
        while len(self._packing) > most:
            at, packing = self._packing.popleft()
            for name, (data, skipped) in packing.result().items():
                place = (at, *(0 for _ in self.columns[name].shape))
                self._dataset(name).id.write_direct_chunk(place, data, filter_mask=skipped)

    def _as_stored(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: values.astype(self.columns[name].dtype, copy=False) for name, values in rows.items()}

    def mark(self) -> None:
        """What was appended so far survives a kill."""
        self._write_packed(most=0)
        for name in self.columns:
            self._dataset(name).flush()
        self._file.attrs.modify(DONE, self._at)
        self._file.flush()
        self.done = self._at

    def finish(self) -> None:
        if self._at != self.rows:
            raise AssertionError(f"{self._at} of {self.rows} rows")
        self.mark()
        self._file.close()
        self.partial.replace(self.path)

    def _dataset(self, name: str) -> h5py.Dataset:
        found = self._file[name]
        assert isinstance(found, h5py.Dataset)
        return found

    def _begun(self) -> h5py.File:
        unfinished = self.partial.with_suffix(".new")
        with h5py.File(unfinished, "w", libver="latest") as file:
            for name, column in self.columns.items():
                file.create_dataset(
                    name,
                    (self.rows, *column.shape),
                    column.dtype,
                    chunks=(min(self._chunk_rows, self.rows), *column.shape),
                    compression=self._compression,
                    fletcher32=True,  # lzf unpacks what is damaged to something else, and says nothing
                    fillvalue=column.fill,
                )
            file.attrs[DONE], file.attrs[MADE_WITH] = 0, self._made_with
        unfinished.replace(self.partial)
        return h5py.File(self.partial, "r+", libver="latest")

    def _continued(self) -> h5py.File:
        cleared(self.partial)
        try:
            file = h5py.File(self.partial, "r+", libver="latest")
        except OSError as problem:
            raise DataError(f"{self.partial} cannot be continued ({problem}): remove it, and begin anew") from None
        others = _others(file, json.loads(self._made_with))
        if others:
            file.close()
            raise DataError(
                f"{self.partial} was begun with other options, {others}: use the same ones to continue it, name another"
                " --out, or remove it"
            )
        return file


def is_finished(path: Path, made_with: Mapping[str, Any]) -> bool:
    """Whether the file is there, whole, and made with just that. DataError where it was made with anything else."""
    if not path.exists():
        return False
    with opened(path) as file:
        others = _others(file, made_with) if MADE_WITH in file.attrs else "which it does not name"
    if others:
        raise DataError(f"{path} is there already, made with other options, {others}: name another --out, or remove it")
    return True


def _others(file: h5py.File, made_with: Mapping[str, Any]) -> str:
    """In words, what a file was made with where it is not this; empty where it is."""
    then = json.loads(str(file.attrs[MADE_WITH]))
    now = json.loads(json.dumps(made_with))  # as it would be read again
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return "; ".join(f"{name} {then.get(name, 'unknown')} there and {now.get(name)} here" for name in names)


def cleared(path: Path) -> None:
    """Takes back the note "open for writing" that a killed process left in the file's first bytes.

    Superblock of version 3, HDF5 File Format Specification 3.0, section II.A: byte 11 are the flags, bytes 44 to 48
    Jenkins' lookup3 of all before them.
    """
    with open(path, "r+b") as file:
        head = file.read(48)
        whole = head[:9] == b"\x89HDF\r\n\x1a\n\x03" and struct.unpack("<I", head[44:]) == (_lookup3(head[:44]),)
        if not whole:
            raise DataError(f"{path} is damaged in its first bytes, and cannot be continued: remove it, and begin anew")
        if head[11]:
            mended = head[:11] + b"\0" + head[12:44]
            file.seek(0)
            file.write(mended + struct.pack("<I", _lookup3(mended)))


def _lookup3(data: bytes) -> int:
    """Bob Jenkins' hashlittle, https://burtleburtle.net/bob/c/lookup3.c, with the initial value 0."""
    mask = 0xFFFFFFFF

    def turned(x: int, by: int) -> int:
        return (x << by | x >> (32 - by)) & mask

    a = b = c = (0xDEADBEEF + len(data)) & mask
    filled = data + b"\0" * (-len(data) % 12)
    words = struct.unpack(f"<{len(filled) // 4}I", filled)
    for first in range(0, len(words), 3):
        a, b, c = ((old + new) & mask for old, new in zip((a, b, c), words[first : first + 3], strict=True))
        if first + 3 == len(words):
            break
        for by in (4, 6, 8, 16, 19, 4):
            a, c = (a - c) & mask ^ turned(c, by), (c + b) & mask
            a, b, c = b, c, a
    for by in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - turned(b, by)) & mask
        a, b, c = b, c, a
    return b
