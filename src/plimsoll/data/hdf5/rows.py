"""Reads rows of an HDF5 file, from datasets of equal length, a chunk at a time.

Reading any part of a compressed chunk decompresses all of it, so only complete chunks are read (`Hdf5Rows.spans`).
Memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.data import in_short
from plimsoll.errors import DataError, names_in_words
from plimsoll.units import MIB, format_bytes

WITHOUT_CHUNKS = 512
"""Rows per read if the datasets of the file are not stored in chunks."""
CACHE_BYTES = MIB
"""Bytes of HDF5's cache per dataset. A small cache suffices, since each chunk is read completely and once."""
HUGE_CHUNK = 8 * MIB

Rows = dict[str, np.ndarray]


class Hdf5Rows:
    """The rows of an HDF5 file. `columns` is a dict from the name of each array of a row to its dataset in the file."""

    def __init__(self, path: str | Path, columns: Mapping[str, str]) -> None:
        self.path = Path(path).expanduser()
        with damage_as_error(self.path):
            self._file = opened(self.path)
            self._datasets = {name: self._dataset(place) for name, place in columns.items()}
            lengths = {columns[name]: len(dataset) for name, dataset in self._datasets.items()}
            if len(set(lengths.values())) > 1:
                words = ", ".join(f"{place} has {rows:,}" for place, rows in lengths.items())
                raise DataError(
                    f"the datasets of {self.path} have unequal numbers of rows: {words}. Each row needs them all"
                )
            self._count = next(iter(lengths.values()), 0)
            if not self._count:
                raise DataError(f"{self.path} has no rows in {', '.join(columns.values())}")
            self.attributes: dict[str, Any] = dict(self._file.attrs)
        self.row_spec = {name: (dataset.shape[1:], dataset.dtype.name) for name, dataset in self._datasets.items()}
        """Dict from the name of each array of a row to the array's shape and dtype."""
        self.row_bytes = sum(map(row_bytes_of, self._datasets.values()))
        widest = max(self._datasets.values(), key=row_bytes_of)
        self.chunk_rows = int(widest.chunks[0]) if widest.chunks else min(WITHOUT_CHUNKS, self._count)
        """Rows per read: a chunk of the dataset with the widest rows, which takes longest to read."""

    def __len__(self) -> int:
        return self._count

    def _dataset(self, place: str) -> h5py.Dataset:
        dataset = self._file.get(place)
        if not isinstance(dataset, h5py.Dataset):
            names = names_in_words(map(name_of, datasets_in(self._file)), all_of_them="`plimsoll inspect`") or "none"
            raise DataError(f"{self.path} has no dataset {place!r}: it has {names}")
        if not dataset.shape:
            raise DataError(f"{place} of {self.path} is a single value: its first axis should count the rows")
        return dataset

    def array(self, place: str) -> np.ndarray | None:
        """Returns a small dataset as an array; None if there is no such dataset."""
        dataset = self._file.get(place)
        return np.asarray(dataset[()]) if isinstance(dataset, h5py.Dataset) else None

    def spans(self, begin: int = 0, end: int | None = None) -> tuple[int, int, int]:
        """Returns the spans (chunks of the file) that hold rows `begin` to `end` - 1.

        The result is the index of the first span, the number of spans, and the number of rows per span. `end` is by
        default the number of all rows.
        """
        rows, end = self.chunk_rows, self._count if end is None else end
        first = begin // rows
        return first, -(-end // rows) - first, rows

    def spread_spans(self, most: int) -> Iterator[tuple[int, int]]:
        """Yields `(begin, end)` of at most `most` spans spread evenly over the file, including its first and last."""
        _, count, span = self.spans()
        for at in np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist():
            yield at * span, min(self._count, (at + 1) * span)

    def read(self, begin: int, end: int) -> Rows:
        """Returns rows `begin` to `end` - 1. Raises DataError if they cannot be read."""
        try:
            return {name: dataset[begin:end] for name, dataset in self._datasets.items()}
        except OSError as problem:
            raise DataError(
                f"rows {begin:,} to {end:,} of {self.path} cannot be read ({problem}): the file or its disk is damaged"
                " there. Copy the file again, or make it again"
            ) from None


@contextmanager
def damage_as_error(path: Path) -> Iterator[None]:
    """Raises DataError instead of h5py's half a dozen error classes for damaged files."""
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError) as problem:
        raise DataError(f"{path} is damaged ({in_short(problem)}): copy it again, or make it again") from problem


def opened(path: Path) -> h5py.File:
    """Opens an HDF5 file. Raises DataError if it is missing, truncated, not HDF5, or written by another process."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: name the HDF5 file in it")
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        unfinished = f"; {partial.name} is there: `plimsoll prepare` has not completed it" if partial.exists() else ""
        raise DataError(f"there is no file {path}{unfinished}")
    try:
        return h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    except OSError as problem:
        raise DataError(
            f"{path} cannot be opened ({in_short(problem)}): it is no HDF5 file, or truncated, or another process is"
            " writing it. Copy it again, or make it again"
        ) from None


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenates the rows of all parts. A single part is not copied."""
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def not_finite(rows: Rows) -> np.ndarray:
    """Returns a boolean array that is True for rows with a NaN or an infinity."""
    count = len(next(iter(rows.values())))
    bad = np.zeros(count, bool)
    for values in rows.values():
        if values.dtype.kind == "f" and count:
            flat = values.reshape(count, -1)
            with np.errstate(invalid="ignore", over="ignore"):
                suspect = ~np.isfinite(flat @ np.ones(flat.shape[1], flat.dtype))  # faster than testing each number
            if suspect.any():
                bad[suspect] |= ~np.isfinite(flat[suspect]).all(axis=1)
    return bad


def huge_chunk_advice(dataset: h5py.Dataset) -> str | None:
    """Returns advice for the user if a dataset has chunks larger than HUGE_CHUNK (8 MiB), else None."""
    if not dataset.chunks:
        return None
    size = int(np.prod(dataset.chunks, dtype=np.int64)) * dataset.dtype.itemsize
    if size <= HUGE_CHUNK:
        return None
    return (
        f"{name_of(dataset)} of {dataset.file.filename} has chunks of {dataset.chunks[0]:,} rows, {format_bytes(size)}"
        f" ({dataset.compression or 'not packed'}): each is read whole, also for one row of it. Copy the file into"
        ' smaller chunks, as docs/control.md says ("Huge chunks")'
    )


def row_bytes_of(dataset: h5py.Dataset) -> int:
    """Returns the bytes of a row."""
    return int(np.prod(dataset.shape[1:], dtype=np.int64)) * dataset.dtype.itemsize


def datasets_in(file: h5py.File) -> list[h5py.Dataset]:
    """Returns all datasets, including those in groups."""
    datasets: list[h5py.Dataset] = []
    file.visititems(lambda _, item: datasets.append(item) if isinstance(item, h5py.Dataset) else None)
    return datasets


def name_of(dataset: h5py.Dataset) -> str:
    """Returns the name of a dataset without the leading slash."""
    return str(dataset.name).removeprefix("/")
