"""An HDF5 file of any size as the data of a user's recipe (training problem). Rows are read chunk by chunk.

plimsoll.recipe(data=lambda: plimsoll.Hdf5("w.h5", {"x": "states", "y": "labels"}), ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from plimsoll.data import FOLDER
from plimsoll.data.examples import Example, ExampleSet, filled_up, narrowed
from plimsoll.data.hdf5.rows import Hdf5Rows, Rows
from plimsoll.data.hdf5.shuffled import MIX, MixedChunks, in_order
from plimsoll.data.loader import Loader
from plimsoll.errors import DataError
from plimsoll.types import COUNTED
from plimsoll.units import MIB

READER_BYTES = 10 * MIB
"""Bytes that training takes besides chunks: HDF5's cache, and heap memory left by decompressed chunks (notes, "The
reader's share")."""


class Hdf5(ExampleSet):
    """Examples in an HDF5 file, which may be larger than memory. Return one from the function `data` of a recipe.

    The first axis of every dataset counts the examples. The file is read in chunks, in a shuffled order for training.
    64-bit numbers are converted to 32-bit ones.

    Args:
        path: Path of the file. A relative path is looked up beside the recipe's file first, then in the current folder.
        columns: Dict from the names of an example's arrays to the datasets that hold them, like {"x": "states"}.
        rows: Range of examples to use, (begin, end) as in a slice: (0, -1000) leaves out the last 1,000. None is the
            beginning or the end of the file.
        mix: Number of chunks of the file in the shuffle buffer, which is in memory. The order of chunks is random, too.
        skip_bad: Whether to skip examples with NaN or infinity. By default such an example stops the run.

    Raises:
        DataError: The file cannot be read, a dataset is missing, `rows` reaches beyond the file's end or is empty, or
            `columns` is not a dict.

    Example:
        >>> data = lambda: plimsoll.Hdf5("windows.h5", {"x": "states", "y": "labels"}, rows=(0, -1000))
    """

    def __init__(
        self,
        path: str | Path,
        columns: Mapping[str, str],
        *,
        rows: tuple[int | None, int | None] = (None, None),
        mix: int = MIX,
        skip_bad: bool = False,
    ) -> None:
        """Opens the file. The class describes the arguments."""
        if not isinstance(columns, Mapping) or not columns:
            raise DataError(
                "Hdf5 takes columns as a dict from the names of an example's arrays to the datasets that hold them,"
                f' like {{"x": "states"}}, and got {columns!r}'
            )
        beside = FOLDER.get() / Path(path).expanduser()
        self._rows = Hdf5Rows(beside if beside.exists() else path, columns)
        self._mix, self._skip_bad = mix, skip_bad
        self.called = str(self._rows.path)
        if COUNTED in columns:
            raise DataError(f"{self.called}: the name {COUNTED!r} is taken by evaluation: choose another name")
        count = len(self._rows)
        self._begin, self._end, _ = slice(*rows).indices(count)
        reaches_beyond = any(row is not None and abs(row) > count for row in rows)
        if reaches_beyond or self._begin >= self._end:
            raise DataError(
                f"{self.called} has {count:,} rows, and rows={rows} selects none of them or reaches beyond them: give"
                " (begin, end) as in a slice, where None is the beginning or the end"
            )
        none = self._narrowed(self._rows.read(0, 0))
        self.spec = {name: (values.shape[1:], values.dtype.name) for name, values in none.items()}

    def __len__(self) -> int:
        return self._end - self._begin

    def loader(self, *, batch_size: int, seed: int, shuffle: bool, prefetch: int) -> Loader:
        batches = MixedChunks(
            self._rows,
            batch_size=batch_size,
            seed=seed,
            rows=(self._begin, self._end),
            mix=self._mix,
            shuffle=shuffle,
            derive=self._narrowed,
            skip_bad=self._skip_bad,
        )
        return Loader(batches, prefetch=prefetch)

    def counted(self, batch_size: int) -> Iterator[Example]:
        first, count, span = self._rows.spans(self._begin, self._end)
        spans = [(max(self._begin, at * span), min(self._end, (at + 1) * span)) for at in range(first, first + count)]
        batches = in_order(self._rows, spans, batch_size=batch_size, derive=self._narrowed, skip_bad=self._skip_bad)
        for rows, count in batches:
            yield filled_up(rows, count, batch_size)

    def held_bytes(self, *, training: bool) -> int:
        """Returns the host memory in bytes that reading the file takes.

        This is two copies of the chunk that is being read: as stored, and converted to 32 bits. In training, the
        shuffle buffer of `mix` chunks and HDF5's own memory are added.

        Args:
            training: Whether the file is read for training (True) or for evaluation (False).
        """
        row = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.spec.values())
        mixed = min(self._mix, self._rows.spans(self._begin, self._end)[1]) if training else 0
        chunks = self._rows.chunk_rows * ((mixed + 1) * row + self._rows.row_bytes)
        return chunks + (READER_BYTES if training else 0)

    @property
    def path(self) -> Path:
        """Path of the opened file."""
        return self._rows.path

    def _narrowed(self, rows: Rows) -> Rows:
        return {name: narrowed(values, f"{self.called}: {name!r}") for name, values in rows.items()}
