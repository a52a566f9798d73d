"""An HDF5 file as the data of a recipe of one's own: rows read a chunk at a time, whatever the size of the file.

plimsoll.recipe(data=lambda: plimsoll.Hdf5("w.h5", {"x": "states", "y": "labels"}), ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.batch_source import BatchSource
from plimsoll.data.examples import Example, narrowed
from plimsoll.data.hdf5.rows import Hdf5Rows, Rows
from plimsoll.data.hdf5.same_file import identity, require_same
from plimsoll.data.hdf5.shuffled import MIX, in_order, mixed_loader
from plimsoll.errors import DataError
from plimsoll.types import COUNTED
from plimsoll.units import MIB

READER_BYTES = 10 * MIB
"""What reading adds to a loader of arrays: HDF5's cache, and what unpacked chunks leave in the heap (docs/log.md, "The
reader's share")."""


class Hdf5:
    """Datasets of one length, one example a row.

    `columns`: what a part of an example is called, and the dataset it is read from. `rows`: first and one behind the
    last, like a slice's (None, negative numbers). `mix`: chunks of the file whose rows are shuffled together; the
    order of all chunks is shuffled anyway. `skip_bad`: leave rows out that are not finite; otherwise they end the run.
    64-bit numbers become 32-bit ones.
    """

    called: str
    """What a refusal calls it."""

    def __init__(
        self,
        path: str | Path,
        columns: Mapping[str, str],
        *,
        rows: tuple[int | None, int | None] = (None, None),
        mix: int = MIX,
        skip_bad: bool = False,
    ) -> None:
        self._rows, self._mix, self._skip_bad = Hdf5Rows(path, columns), mix, skip_bad
        self.called = str(self._rows.path)
        if COUNTED in columns:
            raise DataError(f"{self.called}: the name {COUNTED!r} is taken, evaluation uses it: choose another")
        self._begin, self._end, _ = slice(*rows).indices(len(self._rows))
        if any(one is not None and abs(one) > len(self._rows) for one in rows):
            raise DataError(
                f"{self.called} has {len(self._rows):,} rows, and rows={rows} reaches beyond them: None stands for the"
                " first, or for the last"
            )
        if self._begin >= self._end:
            raise DataError(
                f"{self.called} has {len(self._rows):,} rows, and rows={rows} asks for those from {self._begin:,} to"
                f" {self._end:,}: none"
            )
        none = self._narrowed(self._rows.read(0, 0))
        self.spec = {name: (values.shape[1:], values.dtype.name) for name, values in none.items()}
        """Name to the shape and dtype of one example."""

    def __len__(self) -> int:
        return self._end - self._begin

    def loader(self, *, batch_size: int, seed: int, shuffle: bool, prefetch: int) -> BatchSource:
        return mixed_loader(
            self._rows,
            batch_size=batch_size,
            seed=seed,
            rows=(self._begin, self._end),
            mix=self._mix,
            shuffle=shuffle,
            derive=self._narrowed,
            skip_bad=self._skip_bad,
            prefetch=prefetch,
        )

    def counted(self, batch_size: int) -> Iterator[Example]:
        """Every row once, in the order of the file. The last batch is filled up with copies which `COUNTED` says not
        to count."""
        first, count, span = self._rows.spans(self._begin, self._end)
        spans = [(max(self._begin, at * span), min(self._end, (at + 1) * span)) for at in range(first, first + count)]
        left = {name: np.empty((0, *shape), dtype) for name, (shape, dtype) in self.spec.items()}
        everything = np.ones(batch_size, bool)
        for rows in in_order(self._rows, spans, derive=self._narrowed, skip_bad=self._skip_bad):
            left = {name: np.concatenate([left[name], rows[name]]) for name in rows}
            while _count(left) >= batch_size:
                yield {name: values[:batch_size] for name, values in left.items()} | {COUNTED: everything}
                left = {name: values[batch_size:] for name, values in left.items()}
        if there := _count(left):
            at = np.minimum(np.arange(batch_size), there - 1)
            yield {name: values[at] for name, values in left.items()} | {COUNTED: np.arange(batch_size) < there}

    def held_bytes(self, *, training: bool) -> int:
        """The chunks that are mixed, and the reader; evaluating, a chunk as it is read, and as it is handed on."""
        of_row = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.spec.values())
        together = min(self._mix, self._rows.spans(self._begin, self._end)[1]) if training else 0
        chunks = self._rows.chunk_rows * ((together + 1) * of_row + self._rows.row_bytes)
        return chunks + (READER_BYTES if training else 0)

    def identity(self) -> dict[str, Any]:
        return identity(self._rows)

    def require_same(self, then: Mapping[str, Any]) -> str | None:
        return require_same(self._rows, then)

    @property
    def warning(self) -> str | None:
        """Where the file's chunks cost much memory."""
        return self._rows.warning(mix=self._mix)

    def _narrowed(self, rows: Rows) -> Rows:
        return {name: narrowed(values, f"{self.called}: {name!r}") for name, values in rows.items()}


def _count(rows: Rows) -> int:
    return len(next(iter(rows.values())))
