"""An HDF5 file written anew, in chunks that are quick to read in a shuffled order.

Memory holds one span of rows: a chunk of the old file, or as many rows as fit into 16 MiB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plimsoll.data.hdf5.rows import opened, row_bytes_of
from plimsoll.data.hdf5.writer import LEAST_FREE, free_bytes
from plimsoll.errors import DataError, StoppedError
from plimsoll.units import MIB, format_bytes

SPAN_BYTES = 16 * MIB
CACHE_BYTES = 16 * MIB
"""Of a dataset that is written: a chunk that spans end in is completed in memory."""

Progress = Callable[[int, int], None]


def rechunk(
    old: Path, new: Path, *, chunk_rows: int = 512, progress: Progress = lambda done, rows: None
) -> dict[str, Any]:
    """All of `old`; datasets of as many rows as the longest get chunks of `chunk_rows`, packed with lzf."""
    if chunk_rows < 1:
        raise DataError(f"--chunk-rows must be 1 or more, got {chunk_rows}")
    _require_new(old, new)
    started, partial = time.perf_counter(), new.with_name(f"{new.name}.partial")
    with opened(old) as source:
        rows = _longest(source)
        try:
            with h5py.File(partial, "x", rdcc_nbytes=CACHE_BYTES, libver="latest") as file:
                written = _copied(source, file, partial, rows, chunk_rows, progress)
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
        "datasets": written,
        "chunk_rows": chunk_rows,
        "bytes": new.stat().st_size,
        "bytes_before": old.stat().st_size,
        "seconds": time.perf_counter() - started,
    }


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """`plimsoll prepare rechunk`. Progress goes to standard error."""
    how = dict(asked)
    old, new = Path(how.pop("old")).expanduser(), Path(how.pop("out")).expanduser()
    said = time.monotonic()

    def progress(done: int, rows: int) -> None:
        nonlocal said
        if time.monotonic() - said > 2:
            said = time.monotonic()
            print(f"  {done:,} of {rows:,} rows", file=sys.stderr, flush=True)

    return rechunk(old, new, progress=progress, **how)


def _require_new(old: Path, new: Path) -> None:
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


def _longest(file: h5py.File) -> int:
    lengths: list[int] = []
    file.visititems(
        lambda _, item: lengths.append(item.shape[0]) if isinstance(item, h5py.Dataset) and item.shape else None
    )
    if not max(lengths, default=0):
        raise DataError(f"{file.filename} has no dataset with rows")
    return max(lengths)


def _copied(source: h5py.File, file: h5py.File, partial: Path, rows: int, chunk_rows: int, progress: Progress) -> int:
    large: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group):
            made: Any = file.require_group(name)
        elif item.shape and item.shape[0] == rows:
            large.append(name)
            chunks = (min(chunk_rows, rows), *item.shape[1:])
            made = file.create_dataset(
                name,
                item.shape,
                item.dtype,
                chunks=chunks,
                compression="lzf",
                fletcher32=True,
                fillvalue=item.fillvalue,
            )
        else:
            source.copy(item, file, name)
            return
        _attributes(item, made)

    _attributes(source, file)
    source.visititems(visit)
    for number, name in enumerate(large):
        old, new = source[name], file[name]
        assert isinstance(old, h5py.Dataset)
        assert isinstance(new, h5py.Dataset)
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
    return len(large)


def _attributes(old: h5py.Group | h5py.Dataset, new: h5py.Group | h5py.Dataset) -> None:
    for name, value in old.attrs.items():
        new.attrs[name] = np.asarray(value) if isinstance(value, np.generic) else value
