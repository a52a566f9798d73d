"""Batches of rows in a shuffled order, each byte of the file read once an epoch.

The order of the chunks is shuffled; `mix` of them at a time are read and their rows shuffled together, so that a batch
holds rows of `mix` places of the file. Memory holds those chunks once, and the order of all chunks (4 bytes a chunk).
The position is three numbers: epoch, group of chunks, row in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from plimsoll.data.batch_source import BatchSource
from plimsoll.data.hdf5.rows import Hdf5Rows, Rows, not_finite
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import GIB

MIX = 16
"""Chunks whose rows are shuffled together."""
COUNTED_BYTES = 4 * GIB
"""Decompressed bytes that are read at most to count rows that are not finite once one was met: about five seconds."""

Derive = Callable[[Rows], Rows]
"""From the rows of a chunk as they were read to those that are trained on; fewer, where some are left out."""


class Group(NamedTuple):
    """Chunks that are shuffled together: `order` counts the rows that are there, of `rows` that have room for more."""

    rows: Rows
    order: np.ndarray
    skipped: int
    """Rows that were left out because they are not finite."""


class MixedChunks(grain.IterDataset):
    """Batches without end of the rows from `rows[0]` to before `rows[1]`."""

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
        super().__init__()
        if mix < 1:
            raise RecipeError(f"--mix-chunks must be 1 or more, got {mix}")
        self.source, self.batch_size, self.together = source, batch_size, mix
        self.begin, self.end = rows or (0, len(source))
        if self.end <= self.begin:
            raise DataError(f"{source.path} has no rows from {self.begin:,} to {self.end:,}")
        self.first, self.count, self.span = source.spans(self.begin, self.end)
        self.groups = -(-self.count // mix)
        """Groups of an epoch."""
        self.order_seed, self.shuffled, self.derive, self.skip_bad = seed, shuffle, derive, skip_bad

    def order(self, epoch: int) -> np.ndarray:
        """Returns the spans as one epoch reads them."""
        order = order_of_chunks(self.count, self.order_seed, epoch) if self.shuffled else np.arange(self.count)
        return self.first + order

    def group(self, epoch: int, number: int, order: np.ndarray, room: Rows) -> Group:
        """Reads a group into `room`, the arrays of the group before.

        A second group in memory at the same time would be most of what the loader takes.
        """
        count = skipped = 0
        for span in order[number * self.together : (number + 1) * self.together].tolist():
            begin, end = max(self.begin, span * self.span), min(self.end, (span + 1) * self.span)
            finite, bad = _finite(self.source, begin, end, self.skip_bad)
            rows, skipped = self.derive(finite), skipped + bad
            if not room:
                most = min(self.together, self.count) * self.span
                room |= {name: np.empty((most, *values.shape[1:]), values.dtype) for name, values in rows.items()}
            added = len(next(iter(rows.values())))
            for name, values in rows.items():
                room[name][count : count + added] = values
            count += added
        within = order_within(count, self.order_seed, epoch, number) if self.shuffled else np.arange(count)
        return Group(room, within, skipped)

    def __iter__(self) -> grain.DatasetIterator:
        return _MixedIterator(self)


class _MixedIterator(grain.DatasetIterator):
    def __init__(self, chunks: MixedChunks) -> None:
        super().__init__()
        self._chunks = chunks
        self._epoch = self._number = self._row = self._skipped = 0
        self._group: Group | None = None
        self._room: Rows = {}
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int32))
        """An epoch, and its order of the spans."""
        self._empty = 0
        """Groups since the last row: an epoch of them means that there is none."""

    def __next__(self) -> Rows:
        self._assert_not_closed()
        wanted, parts, chunks = self._chunks.batch_size, [], self._chunks
        while wanted:
            if self._group is None:
                if self._order[0] != self._epoch:
                    self._order = self._epoch, chunks.order(self._epoch)
                self._group = chunks.group(self._epoch, self._number, self._order[1], self._room)
            group = self._group
            take = group.order[self._row : self._row + wanted]
            if len(take):
                parts.append({name: values[take] for name, values in group.rows.items()})
                wanted, self._row, self._empty = wanted - len(take), self._row + len(take), 0
            if self._row >= len(group.order):
                self._group, self._row, self._number = None, 0, self._number + 1
                self._skipped, self._empty = self._skipped + group.skipped, self._empty + 1
                if self._empty > chunks.groups:
                    raise DataError(f"{chunks.source.path} has no row to train on: all of an epoch were left out")
                if self._number >= chunks.groups:
                    self._epoch, self._number = self._epoch + 1, 0
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def get_state(self) -> dict[str, Any]:
        chunks = self._chunks
        place = {"epoch": self._epoch, "group": self._number, "row": self._row, "skipped": self._skipped}
        return place | {"rows": chunks.end - chunks.begin, "span": chunks.span, "mix": chunks.together}

    def set_state(self, state: dict[str, Any]) -> None:
        chunks = self._chunks
        for name, now, what in (
            ("rows", chunks.end - chunks.begin, "rows"),
            ("span", chunks.span, "rows in a chunk"),
            ("mix", chunks.together, "chunks mixed"),
        ):
            if state[name] != now:
                raise DataError(
                    f"the data position was saved with {state[name]:,} {what}, and now there are {now:,}: put the old"
                    " data back, or start a new run"
                )
        self._epoch, self._number, self._row = state["epoch"], state["group"], state["row"]
        self._skipped, self._group = state["skipped"], None


def order_of_chunks(count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order in which an epoch reads its chunks."""
    return np.random.default_rng([seed, 4, epoch]).permutation(np.arange(count, dtype=np.int32))


def order_within(count: int, seed: int, epoch: int, group: int) -> np.ndarray:
    """Returns the order of the rows of a group of chunks."""
    return np.random.default_rng([seed, 5, epoch, group]).permutation(count)


def mixed_loader(source: Hdf5Rows, *, prefetch: int, **options: Any) -> BatchSource:
    """Builds a loader of `MixedChunks` that makes `prefetch` batches ready in a thread."""
    batches: grain.IterDataset = MixedChunks(source, **options)
    if prefetch:
        batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
    return BatchSource(batches)


def in_order(
    source: Hdf5Rows, spans: list[tuple[int, int]], *, derive: Derive, skip_bad: bool = False
) -> Iterator[Rows]:
    """Yields the rows of some spans in the order of the file."""
    for begin, end in spans:
        rows = derive(_finite(source, begin, end, skip_bad)[0])
        if len(next(iter(rows.values()))):
            yield rows


def _finite(source: Hdf5Rows, begin: int, end: int, skip_bad: bool) -> tuple[Rows, int]:
    """Returns the rows from `begin` to `end` that are finite, and how many are not.

    DataError, with a count over the file, where some are not and `skip_bad` is off.
    """
    rows = source.read(begin, end)
    bad = not_finite(rows)
    if not bad.any():
        return rows, 0
    if skip_bad:
        return {name: values[~bad] for name, values in rows.items()}, int(bad.sum())
    numbers = begin + np.flatnonzero(bad)
    places = ", ".join(f"{row:,}" for row in numbers[:5].tolist())
    total, read = counted_not_finite(source)
    everywhere = f"{total:,} of its {read:,} rows in all"
    if read < len(source):
        everywhere = f"{total:,} of {read:,} rows from all over it, which has {len(source):,}"
    raise DataError(
        f"{source.path} has rows that are not finite: {places}{', ...' if len(numbers) > 5 else ''}; {everywhere}. Mend"
        " them, or leave such rows out, which counts them: --skip-bad, or skip_bad=True of plimsoll.Hdf5"
    )


def counted_not_finite(source: Hdf5Rows, *, most_bytes: int = COUNTED_BYTES) -> tuple[int, int]:
    """Counts rows that are not finite, and rows that were read: all, or those of chunks from all over the file."""
    total = read = 0
    for begin, end in source.spread_spans(max(1, most_bytes // (source.chunk_rows * source.row_bytes))):
        bad = not_finite(source.read(begin, end))
        total, read = total + int(bad.sum()), read + len(bad)
    return total, read


def sampled_order(rows: int, *, chunk_rows: int, mix: int, seed: int, most: int = 2_000_000) -> np.ndarray:
    """Returns the file's row numbers in the order of an epoch, the first `most` of them; nothing is read."""
    spans = order_of_chunks(-(-rows // chunk_rows), seed, 0)
    parts, count = [], 0
    for number in range(-(-len(spans) // mix)):
        group = spans[number * mix : (number + 1) * mix].astype(np.int64)[:, None] * chunk_rows + np.arange(chunk_rows)
        places = group.ravel()
        places = places[places < rows]
        parts.append(places[order_within(len(places), seed, 0, number)])
        count += len(places)
        if count >= most:
            break
    return np.concatenate(parts)
