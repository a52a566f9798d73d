"""Reads rows of a `.npy` file of tokens by index, and keeps nothing of the file in memory.

A memory map would leave every touched page in the resident set, which counts as memory of a run on a CPU. After an
epoch the resident set would hold the complete file: 162 MB of Sudoku-Extreme, about 6 GB of ARC. Positioned reads leave
only the batch in memory, but are slower: 768 rows of 81 bytes take 1.1 ms, and 0.06 ms (and 78 MiB) with a memory map
(one core, file in the page cache). The loader's prefetch thread hides that time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32

from plimsoll.data import in_short
from plimsoll.errors import DataError
from plimsoll.units import MIB

SLICE_BYTES = 4 * MIB
"""Bytes per read when all rows of a file are read in order."""


def loaded(path: Path, *, mapped: bool = False) -> np.ndarray:
    """Loads a `.npy` file, as a memory map if `mapped`. Raises DataError for pickled objects, which could run code."""
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise DataError(
            f"{path} cannot be read as an array of numbers ({in_short(problem)}): prepare the data set again"
        ) from None


def fill(file: io.FileIO, place: np.ndarray, first: int) -> None:
    """Fills the array `place` with a file's bytes from byte `first`. Nothing else of the file stays in memory."""
    if os.preadv(file.fileno(), [place.data], first) != place.nbytes:
        raise DataError(
            f"{file.name} ends before byte {first + place.nbytes:,}: it was changed while it was read. Run the same"
            " command again"
        )


class TokenTable:
    """A table of tokens on disk, (rows, `seq_len`). Each read raises DataError for tokens outside the vocabulary."""

    def __init__(self, path: Path, *, seq_len: int, vocab_size: int) -> None:
        table = loaded(path, mapped=True)
        is_table = table.ndim == 2 and table.shape[1] == seq_len and table.dtype.kind in "iu"
        if not is_table or not isinstance(table, np.memmap) or not table.flags.c_contiguous:
            raise DataError(
                f"{path} holds {table.dtype} of the shape {table.shape}, and rows of {seq_len:,} whole numbers, one row"
                " after the other, were expected (seq_len of dataset.json): prepare the data set again"
            )
        self.path, self.seq_len, self.vocab_size = path, seq_len, vocab_size
        self._rows, self._dtype, self._offset = len(table), table.dtype, table.offset
        self.row_bytes = seq_len * table.dtype.itemsize
        """Bytes of a row on disk."""

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Int[np.ndarray, " count"]) -> Int32[np.ndarray, "count seq_len"]:
        """Returns the rows with these indices, in this order."""
        tokens = np.empty((len(rows), self.seq_len), self._dtype)
        with open(self.path, "rb", buffering=0) as file:
            for place, row in zip(tokens, rows.tolist(), strict=True):
                fill(file, place, self._offset + row * self.row_bytes)
        wrong = np.argwhere((tokens < 0) | (tokens >= self.vocab_size))
        if len(wrong):
            row, column = wrong[0].tolist()
            raise DataError(
                f"{self.path}: row {int(rows[row]):,} has the token {int(tokens[row, column])} at place {column:,}, and"
                f" the vocabulary of dataset.json has {self.vocab_size}. Prepare the data set again"
            )
        return tokens.astype(np.int32)

    def slices(self) -> Iterator[Int32[np.ndarray, "count seq_len"]]:
        """Yields all rows in order, 4 MiB at a time."""
        count = max(1, SLICE_BYTES // self.row_bytes)
        for first in range(0, len(self), count):
            yield self.take(np.arange(first, min(first + count, len(self))))
