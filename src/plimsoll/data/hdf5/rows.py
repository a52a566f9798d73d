"""Rows of an HDF5 file: datasets of one length, read a chunk at a time.

A compressed chunk is unpacked whole whatever is asked of it, so rows are only ever read in the chunks they lie in
(`Hdf5Rows.spans`). Nothing of the size of the file is held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.errors import DataError
from plimsoll.units import MIB, format_bytes, format_seconds

WITHOUT_CHUNKS = 512
"""Rows read at a time where the file is not chunked."""
CACHE_BYTES = MIB
"""Of a dataset: chunks are read whole and once, so none is worth keeping."""
HUGE_CHUNK = 8 * MIB
DONE = "rows_written"
"""An attribute of a file that says how many of its rows are there; absent where all are."""

Rows = dict[str, np.ndarray]


class Hdf5Rows:
    """`columns`: what a row's parts are called here, and the datasets they are read from."""

    def __init__(self, path: str | Path, columns: Mapping[str, str]) -> None:
        self.path = Path(path).expanduser()
        with told_as_damage(self.path):
            self._open(columns)

    def _open(self, columns: Mapping[str, str]) -> None:
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
        written = int(self._file.attrs.get(DONE, self._count))
        if written < self._count:
            raise DataError(
                f"{self.path} is still being written, or its writer was stopped: {written:,} of {self._count:,} rows"
                " are there. Run the same `plimsoll prepare` again to complete it"
            )

    def __len__(self) -> int:
        return self._count

    @property
    def spec(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name to the shape and dtype of one row."""
        return {name: (dataset.shape[1:], dataset.dtype.name) for name, dataset in self._datasets.items()}

    @property
    def chunk_rows(self) -> int:
        """Of the dataset with the widest rows: it costs most to read."""
        widest = max(self._datasets.values(), key=row_bytes_of)
        return int(widest.chunks[0]) if widest.chunks else min(WITHOUT_CHUNKS, self._count)

    @property
    def row_bytes(self) -> int:
        return sum(map(row_bytes_of, self._datasets.values()))

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self._file.attrs)

    def array(self, place: str) -> np.ndarray | None:
        """A small dataset, whole; None where there is none."""
        found = self._file.get(place)
        return np.asarray(found[()]) if isinstance(found, h5py.Dataset) else None

    def group(self, place: str) -> list[str]:
        """Names in a group; none where there is no such group."""
        found = self._file.get(place)
        return list(found) if isinstance(found, h5py.Group) else []

    def spans(self, begin: int = 0, end: int | None = None) -> tuple[int, int, int]:
        """First span, number of spans and rows of a span of the chunks that hold rows `begin` to `end`."""
        rows, end = self.chunk_rows, self._count if end is None else end
        first = begin // rows
        return first, -(-end // rows) - first, rows

    def read(self, begin: int, end: int) -> Rows:
        try:
            return {name: dataset[begin:end] for name, dataset in self._datasets.items()}
        except OSError as problem:
            raise DataError(
                f"rows {begin:,} to {end:,} of {self.path} cannot be read ({problem}): the file is damaged there, or"
                " its disk is. Copy it again, or make it anew"
            ) from None

    def warning(self, *, mix: int) -> str | None:
        """Where chunks are so large that mixing `mix` of them takes much memory: with what a chunk costs, measured."""
        for dataset in self._datasets.values():
            size = _chunk_bytes(dataset)
            if dataset.chunks and size > HUGE_CHUNK:
                started = time.perf_counter()
                dataset[: dataset.chunks[0]]
                seconds = time.perf_counter() - started
                return (
                    f"{dataset.name} of {self.path} has chunks of {dataset.chunks[0]:,} rows, {format_bytes(size)}"
                    f" ({dataset.compression or 'not packed'}): each is read whole ({format_seconds(seconds)}), and"
                    f" {mix} of them are held at a time. `plimsoll prepare rechunk {self.path} --out NEW.h5` writes"
                    " them smaller; or lower --mix-chunks"
                )
        return None

    @property
    def has_huge_chunks(self) -> bool:
        return any(_chunk_bytes(dataset) > HUGE_CHUNK for dataset in self._datasets.values())

    def close(self) -> None:
        self._file.close()

    def _dataset(self, place: str) -> h5py.Dataset:
        found = self._file.get(place)
        if not isinstance(found, h5py.Dataset):
            there = ", ".join(_datasets(self._file)) or "none"
            raise DataError(f"{self.path} has no dataset {place!r}: it has {there}")
        if not found.shape:
            raise DataError(f"{place} of {self.path} is a single value: its first axis should count the rows")
        return found


@contextmanager
def told_as_damage(path: Path) -> Iterator[None]:
    """What h5py raises in the middle of a file that could be opened: half a dozen unrelated classes."""
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError) as problem:
        reason = " ".join(str(problem).split())[:160]
        raise DataError(f"{path} is damaged ({reason}): copy it again, or make it anew") from problem


def opened(path: Path) -> h5py.File:
    """Read-only. DataError where it is no HDF5 file, cut short, or written by another process."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: name the HDF5 file in it")
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        beside = f"; {partial.name} is there: `plimsoll prepare` has not completed it" if partial.exists() else ""
        raise DataError(f"there is no file {path}{beside}")
    try:
        return h5py.File(path, "r", rdcc_nbytes=CACHE_BYTES)
    except OSError as problem:
        said = str(problem)
        if not path.stat().st_size:
            why = "it is empty, 0 bytes"
        elif "truncated file" in said:
            why = "it is cut short: copy it again, or make it anew"
        elif "lock" in said or "already open for write" in said or "SWMR" in said:
            why = "another process is writing it, or was killed while it did: wait, or run its `plimsoll prepare` again"
        else:
            why = f"it is no HDF5 file, or damaged ({said})"
        raise DataError(f"{path} cannot be opened: {why}") from None


def not_finite(rows: Rows) -> np.ndarray:
    """Which rows hold a NaN or an infinity."""
    count = len(next(iter(rows.values())))
    bad = np.zeros(count, bool)
    for values in rows.values():
        if values.dtype.kind == "f" and count:
            flat = values.reshape(count, -1)
            with np.errstate(invalid="ignore", over="ignore"):
                suspect = ~np.isfinite(flat @ np.ones(flat.shape[1], flat.dtype))  # quicker than to look at each
            if suspect.any():
                bad[suspect] |= ~np.isfinite(flat[suspect]).all(axis=1)
    return bad


def _chunk_bytes(dataset: h5py.Dataset) -> int:
    """Unpacked; 0 where it is not chunked."""
    return int(np.prod(dataset.chunks, dtype=np.int64)) * dataset.dtype.itemsize if dataset.chunks else 0


def _datasets(file: h5py.File) -> Sequence[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def row_bytes_of(dataset: h5py.Dataset) -> int:
    return int(np.prod(dataset.shape[1:], dtype=np.int64)) * dataset.dtype.itemsize


def widest(path: str | Path) -> tuple[int, int]:
    """Rows of the dataset with the widest rows, and of a chunk of it."""
    path = Path(path).expanduser()
    with told_as_damage(path), opened(path) as file:
        found = [item for item in map(file.get, _datasets(file)) if isinstance(item, h5py.Dataset) and item.shape]
        if not found:
            raise DataError(f"{path} has no dataset with rows")
        dataset = max(found, key=lambda one: (one.shape[0], row_bytes_of(one)))
        return int(dataset.shape[0]), int(dataset.chunks[0]) if dataset.chunks else WITHOUT_CHUNKS
