"""An HDF5 file written anew, in chunks that are quick to read in a shuffled order.

Memory holds one span of rows: a chunk of the old file, or as many rows as fit into 16 MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.data.disk import free_bytes
from plimsoll.data.hdf5.rows import datasets_in, opened, row_bytes_of
from plimsoll.data.hdf5.writer import LEAST_FREE
from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError, StoppedError
from plimsoll.units import MIB, format_bytes

SPAN_BYTES = 16 * MIB
CACHE_BYTES = 16 * MIB
"""HDF5's cache of a dataset that is written: a chunk that spans end in is completed in memory."""

Progress = Callable[[int, int], None]
"""Called with rows written, and rows in all."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answers `plimsoll prepare rechunk`. Progress goes to standard error."""
    options = dict(request)
    old, new = Path(options.pop("old")).expanduser(), Path(options.pop("out")).expanduser()
    return rechunk(old, new, progress=Spoken("rows"), **options)


def rechunk(
    old: Path, new: Path, *, chunk_rows: int = 512, progress: Progress = lambda done, rows: None
) -> dict[str, Any]:
    """Copies all of `old`; datasets of as many rows as the longest get chunks of `chunk_rows`, compressed with LZF.

    Raises:
        DataError: `new` exists or has no room, or `old` has no rows.
        StoppedError: The disk became full. Nothing is kept.
    """
    if chunk_rows < 1:
        raise DataError(f"--chunk-rows must be 1 or more, got {chunk_rows}")
    if new.exists():
        raise DataError(f"{new} is there already: name another --out, or remove it")
    folder = new.absolute().parent
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} for --out {new.name}: make it, or name another")
    if old.exists() and (free := free_bytes(new.absolute())) < (size := old.stat().st_size):
        raise DataError(
            f"{old} has {format_bytes(size)}, and {format_bytes(free)} are free at {folder}: make room, or name another"
            " disk"
        )
    started, partial = time.perf_counter(), new.with_name(f"{new.name}.partial")
    with opened(old) as source:
        try:
            with h5py.File(partial, "x", rdcc_nbytes=CACHE_BYTES, libver="latest") as file:
                rows, datasets = _copy(source, file, partial, chunk_rows, progress)
            partial.replace(new)
        except FileExistsError:
            raise DataError(
                f"{partial} is there: another process writes it, or was killed. Remove it to begin"
            ) from None
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return {
        "path": str(new),
        "rows": rows,
        "datasets": datasets,
        "chunk_rows": chunk_rows,
        "bytes": new.stat().st_size,
        "bytes_before": old.stat().st_size,
        "seconds": time.perf_counter() - started,
    }


def _copy(source: h5py.File, file: h5py.File, partial: Path, chunk_rows: int, progress: Progress) -> tuple[int, int]:
    """Copies everything, and returns the rows of the longest datasets and the number of these."""
    rows = max((dataset.shape[0] for dataset in datasets_in(source) if dataset.shape), default=0)
    if not rows:
        raise DataError(f"{source.filename} has no dataset with rows")
    large: list[tuple[str, h5py.Dataset, h5py.Dataset]] = []

    def copy_attributes(old: h5py.HLObject, new: h5py.HLObject) -> None:
        for name, value in old.attrs.items():
            new.attrs[name] = np.asarray(value) if isinstance(value, np.generic) else value

    def visit(name: str, old: h5py.Group | h5py.Dataset) -> None:
        if isinstance(old, h5py.Group):
            copy_attributes(old, file.require_group(name))
        elif old.shape and old.shape[0] == rows:
            chunks = (min(chunk_rows, rows), *old.shape[1:])
            how = {"chunks": chunks, "compression": "lzf", "fletcher32": True, "fillvalue": old.fillvalue}
            large.append((name, old, file.create_dataset(name, old.shape, old.dtype, **how)))
            copy_attributes(old, large[-1][2])
        else:
            source.copy(old, file, name)

    copy_attributes(source, file)
    source.visititems(visit)
    for number, (name, old, new) in enumerate(large):
        span = old.chunks[0] if old.chunks else max(1, SPAN_BYTES // max(1, row_bytes_of(old)))
        for begin in range(0, rows, span):
            end = min(rows, begin + span)
            if (free := free_bytes(partial)) < LEAST_FREE + (end - begin) * row_bytes_of(old):
                raise StoppedError(
                    f"the disk is full ({format_bytes(free)} free at {partial.parent}) after {begin:,} of {rows:,} rows"
                    f" of {name}: make room, or name an --out on another disk. Nothing was kept"
                )
            new[begin:end] = old[begin:end]
            progress(rows * number // len(large) + end // len(large), rows)
    return rows, len(large)
