"""Batches of rows of an HDF5 file in a shuffled order. Each epoch reads each row once.

The order of the chunks is shuffled. Groups of `mix` chunks are read, and the rows of a group are shuffled together, so
that a batch has rows from `mix` places of the file. Memory holds one group of chunks, and the order of all chunks (4
bytes a chunk). A position in the data is an epoch, a group of chunks and a row in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.hdf5.rows import Hdf5Rows, Rows, joined, not_finite
from plimsoll.data.loader import GroupStream
from plimsoll.errors import DataError

MIX = 16
"""Default number of chunks whose rows are shuffled together."""

Derive = Callable[[Rows], Rows]
"""Function that converts the rows of a chunk to rows for training. It may leave rows out."""


class MixedChunks(GroupStream):
    """Endless batches of the rows from `rows[0]` to `rows[1]` - 1."""

    def __init__(
        self,
        source: Hdf5Rows,
        *,
        batch_size: int,
        seed: int,
        rows: tuple[int, int] | None = None,
        mix: int = MIX,
        shuffle: bool = True,
        derive: Derive = lambda rows: rows,
        skip_bad: bool = False,
    ) -> None:
        require_sizes(mix_chunks=mix)
        self.source = source
        self.batch_size = batch_size
        self.together = mix
        self.begin, self.end = rows or (0, len(source))
        if self.end <= self.begin:
            raise DataError(f"{source.path} has no rows from {self.begin:,} to {self.end:,}")
        self.first, self.count, self.span = source.spans(self.begin, self.end)
        self.groups = -(-self.count // mix)
        self.order_seed = seed
        self.shuffled = shuffle
        self.derive = derive
        self.skip_bad = skip_bad
        self._epoch = -1
        self._spans = np.arange(self.count)
        self._rows: Rows = {}
        self._order_within = np.arange(0)
        facts = {"rows": self.end - self.begin, "chunk_rows": self.span, "mix_chunks": mix}
        super().__init__(facts=facts, name=str(source.path))

    def load(self, epoch: int, group: int) -> tuple[int, int]:
        """Reads a group's chunks into the arrays of the previous group, so that memory holds only one group."""
        if self.shuffled and epoch != self._epoch:
            self._spans = order_of_chunks(self.count, self.order_seed, epoch)
            self._epoch = epoch
        spans = self._spans[group * self.together : (group + 1) * self.together]

        # Read the rows of all chunks in sequence, then shuffle their order.
        count = skipped = 0
        for span in (self.first + spans).tolist():
            begin, end = max(self.begin, span * self.span), min(self.end, (span + 1) * self.span)
            finite, bad = _finite(self.source, begin, end, self.skip_bad)
            rows = self.derive(finite)
            skipped += bad
            if not self._rows:
                most = min(self.together, self.count) * self.span
                self._rows = {name: np.empty((most, *part.shape[1:]), part.dtype) for name, part in rows.items()}
            added = len(next(iter(rows.values())))
            for name, values in rows.items():
                self._rows[name][count : count + added] = values
            count += added
        self._order_within = np.arange(count)
        if self.shuffled:
            self._order_within = order_within(count, self.order_seed, epoch, group)
        return count, skipped

    def take(self, first: int, end: int) -> Rows:
        return {name: values[self._order_within[first:end]] for name, values in self._rows.items()}

    def join(self, parts: list[Rows]) -> Rows:
        return joined(parts)


def order_of_chunks(count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order of the chunks in an epoch."""
    return np.random.default_rng([seed, 4, epoch]).permutation(np.arange(count, dtype=np.int32))


def order_within(count: int, seed: int, epoch: int, group: int) -> np.ndarray:
    """Returns the order of the rows of a group of chunks."""
    return np.random.default_rng([seed, 5, epoch, group]).permutation(count)


def in_order(
    source: Hdf5Rows, spans: list[tuple[int, int]], *, batch_size: int, derive: Derive, skip_bad: bool
) -> Iterator[tuple[Rows, int]]:
    """Yields batches of the rows of `spans`, unshuffled, each with its number of rows. The last may be smaller."""
    left, count = {}, 0
    for begin, end in spans:
        rows = derive(_finite(source, begin, end, skip_bad)[0])
        left = joined([left, rows]) if count else rows
        count = len(next(iter(left.values())))
        while count >= batch_size:
            yield {name: values[:batch_size] for name, values in left.items()}, batch_size
            left, count = {name: values[batch_size:] for name, values in left.items()}, count - batch_size
    if count:
        yield left, count


def _finite(source: Hdf5Rows, begin: int, end: int, skip_bad: bool) -> tuple[Rows, int]:
    """Returns rows `begin` to `end` - 1 without those that hold NaN or infinity, and the number of rows left out.

    Raises DataError if there are such rows and `skip_bad` is False.
    """
    rows = source.read(begin, end)
    bad = not_finite(rows)
    if not bad.any():
        return rows, 0
    if skip_bad:
        return {name: values[~bad] for name, values in rows.items()}, int(bad.sum())
    numbers = (begin + np.flatnonzero(bad)).tolist()
    places = ", ".join(f"{row:,}" for row in numbers[:5])
    raise DataError(
        f"{source.path} has rows that are not finite: {places}{', ...' if len(numbers) > 5 else ''}, {len(numbers):,}"
        f" of rows {begin:,} to {end:,}. Correct them, or skip and count such rows with --skip-bad, or skip_bad=True of"
        " plimsoll.Hdf5"
    )
