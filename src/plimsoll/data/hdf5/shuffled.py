"""Batches of rows in a shuffled order, each byte of the file read once an epoch.

The order of the chunks is shuffled; `mix` of them at a time are read and their rows shuffled together, so that a batch
holds rows of `mix` places of the file. Memory holds those chunks once, and the order of all chunks (4 bytes a chunk).
The position is three numbers: epoch, group of chunks, row in the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.hdf5.rows import Hdf5Rows, Rows, joined, not_finite
from plimsoll.data.loader import Stream
from plimsoll.errors import DataError

MIX = 16
"""Chunks whose rows are shuffled together."""

Derive = Callable[[Rows], Rows]
"""From the rows of a chunk as they were read to those that are trained on; fewer, where some are left out."""


class MixedChunks(Stream):
    """Batches without end of the rows from `rows[0]` to before `rows[1]`."""

    start: ClassVar = {"epoch": 0, "group": 0, "row": 0, "skipped": 0}

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
        self.source, self.batch_size, self.together = source, batch_size, mix
        self.begin, self.end = rows or (0, len(source))
        if self.end <= self.begin:
            raise DataError(f"{source.path} has no rows from {self.begin:,} to {self.end:,}")
        self.first, self.count, self.span = source.spans(self.begin, self.end)
        self.groups = -(-self.count // mix)
        """Groups of an epoch."""
        self.order_seed, self.shuffled, self.derive, self.skip_bad = seed, shuffle, derive, skip_bad
        facts = {"rows": self.end - self.begin, "chunk_rows": self.span, "mix_chunks": mix}
        super().__init__(facts=facts, name=str(source.path))

    def fill(self, room: Rows, epoch: int, group: int, spans: np.ndarray) -> tuple[np.ndarray, int]:
        """Reads a group's spans into `room`, which holds the group before.

        A second group in memory at the same time would be most of what the loader takes.

        Returns:
            The order of the rows that were read, and how many were left out because they are not finite.
        """
        count = skipped = 0
        for span in spans.tolist():
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
        return order_within(count, self.order_seed, epoch, group) if self.shuffled else np.arange(count), skipped

    def walk(self, at: dict[str, Any]) -> Iterator[Rows]:
        room: Rows = {}
        spans, of_epoch = np.arange(self.count), -1
        order, skipped, empty = None, 0, 0
        while True:
            parts, wanted = [], self.batch_size
            while wanted:
                if order is None:
                    if self.shuffled and of_epoch != at["epoch"]:
                        of_epoch = at["epoch"]
                        spans = order_of_chunks(self.count, self.order_seed, of_epoch)
                    chosen = spans[at["group"] * self.together : (at["group"] + 1) * self.together]
                    order, skipped = self.fill(room, at["epoch"], at["group"], self.first + chosen)
                take = order[at["row"] : at["row"] + wanted]
                if len(take):
                    parts.append({name: values[take] for name, values in room.items()})
                    wanted, at["row"], empty = wanted - len(take), at["row"] + len(take), 0
                if at["row"] >= len(order):
                    order, empty = None, empty + 1
                    if empty > self.groups:
                        raise DataError(f"{self.source.path} has no row to train on: all of an epoch were left out")
                    at["row"], at["group"], at["skipped"] = 0, at["group"] + 1, at["skipped"] + skipped
                    if at["group"] >= self.groups:
                        at["epoch"], at["group"] = at["epoch"] + 1, 0
            yield joined(parts)


def order_of_chunks(count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order in which an epoch reads its chunks."""
    return np.random.default_rng([seed, 4, epoch]).permutation(np.arange(count, dtype=np.int32))


def order_within(count: int, seed: int, epoch: int, group: int) -> np.ndarray:
    """Returns the order of the rows of a group of chunks."""
    return np.random.default_rng([seed, 5, epoch, group]).permutation(count)


def in_order(
    source: Hdf5Rows, spans: list[tuple[int, int]], *, batch_size: int, derive: Derive, skip_bad: bool
) -> Iterator[tuple[Rows, int]]:
    """Yields batches of the rows of some spans in the file's order, and their lengths; the last may be shorter."""
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
    """Returns the rows from `begin` to `end` that are finite, and how many are not.

    DataError where some are not and `skip_bad` is off.
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
        f" of rows {begin:,} to {end:,}. Mend them, or leave such rows out, which counts them: --skip-bad, or"
        " skip_bad=True of plimsoll.Hdf5"
    )


def sampled_order(rows: int, *, chunk_rows: int, mix: int, seed: int, most: int = 2_000_000) -> np.ndarray:
    """Returns the file's row numbers in the order of an epoch, the first `most` of them; nothing is read."""
    spans = order_of_chunks(-(-rows // chunk_rows), seed, 0)
    parts, count = [], 0
    for group, first in enumerate(range(0, len(spans), mix)):
        begins = spans[first : first + mix].astype(np.int64) * chunk_rows
        places = (begins[:, None] + np.arange(chunk_rows)).ravel()
        places = places[places < rows]
        parts.append(places[order_within(len(places), seed, 0, group)])
        count += len(places)
        if count >= most:
            break
    return np.concatenate(parts)
