"""Rows of a `.npy` file of tokens, read by their numbers: nothing of the file stays in memory.

A memory map would leave every page that was ever touched in the resident set, which is what a run on a CPU is measured
by: after an epoch that is the whole file, 162 MB of Sudoku-Extreme and about 6 GB of ARC. Positioned reads of a batch
leave nothing behind but the batch, and cost more time: 1.1 ms for 768 rows of 81 bytes, where the map takes 0.06 ms
(and 78 MiB; measured on one core, the file in the page cache). The loader's thread has that time.
"""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32

from plimsoll.data import in_short
from plimsoll.errors import DataError
from plimsoll.units import MIB

SLICE_BYTES = 4 * MIB
"""Bytes that are read at a time where all of a file is read."""
NOT_READ = (ValueError, OSError, EOFError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError, OverflowError)
"""Errors that NumPy raises for a damaged `.npy` file: its header is a line of Python's literals."""


def loaded(path: Path, *, mapped: bool = False, kinds: str = "iu") -> np.ndarray:
    """Loads the numbers of a `.npy` file, whole ones unless `kinds` (NumPy's letters) allows others.

    Pickled objects are refused: to load one is to run it.
    """
    if not path.is_file():
        raise DataError(f"there is no {path.name} in {path.parent}: the data set is not whole. Prepare it again")
    try:
        values = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except NOT_READ as problem:
        raise DataError(
            f"{path} is no array of numbers that can be read ({in_short(problem)}): it was cut off, or"
            " holds Python objects, which are never loaded. Prepare the data set again"
        ) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
        kind = values.dtype if isinstance(values, np.ndarray) else "an archive"
        raise DataError(f"{path} holds {kind}, and {'fractions' if kinds == 'f' else 'whole numbers'} were expected")
    return values


class TokenTable:
    """A table of (rows, `seq_len`) tokens from 0 to below `vocab_size`; every row is checked when it is read."""

    def __init__(self, path: Path, *, seq_len: int, vocab_size: int) -> None:
        table = loaded(path, mapped=True)
        if table.ndim != 2 or table.shape[1] != seq_len:
            raise DataError(
                f"{path} has the shape {table.shape}, and dataset.json says rows of {seq_len:,} tokens (seq_len):"
                " prepare the data set again"
            )
        if not isinstance(table, np.memmap) or not table.flags.c_contiguous:
            raise DataError(f"{path} is empty, or does not lie row after row (Fortran order): prepare it again")
        self.path, self.seq_len, self.vocab_size = path, seq_len, vocab_size
        self._rows, self._dtype, self._offset = len(table), table.dtype, table.offset
        self.row_bytes = seq_len * table.dtype.itemsize
        """Bytes of a row on disk."""

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Int[np.ndarray, " count"]) -> Int32[np.ndarray, "count seq_len"]:
        """Returns the rows of these numbers, in this order."""
        tokens = np.empty((len(rows), self.seq_len), self._dtype)
        with open(self.path, "rb", buffering=0) as file:
            for place, row in zip(tokens, rows.tolist(), strict=True):
                if os.preadv(file.fileno(), [place.data], self._offset + row * self.row_bytes) != self.row_bytes:
                    raise DataError(f"{self.path} ends before row {row:,}: it was changed while it was read")
        wrong = (tokens < 0) | (tokens >= self.vocab_size)
        if wrong.any():
            at, column = (int(place) for place in np.argwhere(wrong)[0])
            raise DataError(
                f"{self.path}: row {int(rows[at]):,} has the token {int(tokens[at, column])} at place {column:,}, and"
                f" the vocabulary of dataset.json has {self.vocab_size} (0 to {self.vocab_size - 1}). Prepare the data"
                " set again"
            )
        return tokens.astype(np.int32)

    def slices(self) -> Iterator[Int32[np.ndarray, "count seq_len"]]:
        """Yields all rows in order, 4 MiB at a time."""
        count = max(1, SLICE_BYTES // self.row_bytes)
        for first in range(0, len(self), count):
            yield self.take(np.arange(first, min(first + count, len(self))))
