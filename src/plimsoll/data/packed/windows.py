"""Windows of a packed folder in a shuffled order, a batch at a time; the position is three numbers.

The file is cut into runs of 64 KiB: 32 windows of 1,024 tokens in 2 bytes, or one window of 32,768. An epoch goes
through all runs in the order of a permutation; 64 of them at a time are read into one room of 4 MiB, and their windows
are mixed. Windows that are runs of their own are read into the batch, and may follow any other; shorter ones do so
within 64 places of the file.

Why not a permutation of all windows of a memory map: every page that was touched would stay in the resident set, which
is what a run on a CPU is measured by, and handing pages back (madvise) costs a page fault a window: a tenth of the
rate. One positioned read for each window has a quarter of it. Runs come near to it in 6 MiB (docs/packing.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from plimsoll.data.batch_source import BatchSource
from plimsoll.data.loader_bytes import RUNS_MIXED
from plimsoll.data.packed.packed import TOKENS, VALIDATION, Packed, open_packed, require_sizes, run_windows
from plimsoll.data.text.survey import count_windows
from plimsoll.errors import DataError
from plimsoll.types import COUNTED


class PackedWindows(grain.IterDataset):
    """Batches without end of `(batch_size, seq_len + 1)` ids; no window is dropped between epochs."""

    def __init__(self, packed: Packed, *, seq_len: int, batch_size: int, seed: int, workers: int = 0) -> None:
        super().__init__()
        require_sizes(seq_len=seq_len, batch_size=batch_size, seed=seed, workers=workers)
        self.count = packed.windows(seq_len)
        if not self.count:
            raise DataError(
                f"{packed.folder} has {packed.tokens:,} tokens, fewer than the {seq_len + 1:,} of one window: use a"
                " smaller --seq-len, or pack more text"
            )
        self.packed, self.seq_len, self.batch_size = packed, seq_len, batch_size
        self.order_seed, self.workers = seed, workers
        self.run = run_windows(seq_len, packed.on_disk.itemsize)
        self.runs = -(-self.count // self.run)
        self.groups = -(-self.runs // RUNS_MIXED)
        self.checked = packed.vocab_size <= np.iinfo(packed.on_disk).max
        """Whether ids are checked: one can be outside of the vocabulary."""

    def order(self, epoch: int) -> np.ndarray:
        """Returns an epoch's order of the runs: 4 bytes for each 64 KiB of the file, held for an epoch."""
        return np.random.default_rng([self.order_seed, 7, epoch]).permutation(np.arange(self.runs, dtype=np.int32))

    def order_within(self, epoch: int, number: int, runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of the windows of these runs: index of the run among them, and of the window in it."""
        sizes = np.minimum(self.run, self.count - runs.astype(np.int64) * self.run)
        windows = np.flatnonzero(np.arange(self.run) < sizes[:, None])
        return np.divmod(np.random.default_rng([self.order_seed, 6, epoch, number]).permutation(windows), self.run)

    def read(self, runs: np.ndarray) -> np.ndarray:
        """Returns windows that are runs of their own."""
        windows = np.empty((len(runs), self.seq_len + 1), self.packed.on_disk)
        self.fill(windows, runs)
        return windows

    def fill(self, room: np.ndarray, runs: np.ndarray) -> None:
        """Reads the runs into the rows of `room`."""
        path = self.packed.folder / TOKENS

        def read(place: np.ndarray, run: int) -> None:
            first = run * self.run * self.seq_len
            wanted = place[: min(self.run, self.count - run * self.run) * self.seq_len + 1]
            if os.preadv(file.fileno(), [wanted.data], first * room.itemsize) != wanted.nbytes:
                raise DataError(f"{path} ends before token {first + len(wanted):,}: it was changed while it was read")
            if self.checked:
                self.packed.require_ids(wanted, name=TOKENS, at=first)

        with open(path, "rb", buffering=0) as file:
            if self.workers > 1:
                with ThreadPoolExecutor(self.workers) as threads:
                    list(threads.map(read, room, runs.tolist()))
            else:
                for place, run in zip(room, runs.tolist(), strict=False):
                    read(place, run)

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self)


class _Iterator(grain.DatasetIterator):
    def __init__(self, of: PackedWindows) -> None:
        super().__init__()
        self._of = of
        self._epoch = self._number = self._row = 0
        self._runs: tuple[int, np.ndarray] = (-1, np.empty(0, np.int32))
        """An epoch, and its order of the runs."""
        self._order: tuple[np.ndarray, np.ndarray] | None = None
        """Order of the windows in the room; None where they have to be read."""
        self._windows: np.ndarray | None = None
        """Windows of the room, run by run; None where a run is one window, which is read into the batch."""
        if of.run > 1:
            self._room = np.empty((min(RUNS_MIXED, of.runs), of.run * of.seq_len + 1), of.packed.on_disk)
            windows = np.lib.stride_tricks.sliding_window_view(self._room, of.seq_len + 1, axis=1)
            self._windows = windows[:, :: of.seq_len]

    def __next__(self) -> dict[str, np.ndarray]:
        self._assert_not_closed()
        parts = list(self._parts(self._of.batch_size))
        tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return {"tokens": tokens.astype(self._of.packed.dtype, copy=False)}

    def _parts(self, wanted: int) -> Iterator[np.ndarray]:
        """Yields windows until there are as many as wanted, out of as many groups as it takes."""
        while wanted:
            runs, within = self._mixed()
            take = slice(self._row, self._row + wanted)
            part = self._of.read(runs[take]) if self._windows is None else self._windows[runs[take], within[take]]
            wanted, self._row = wanted - len(part), self._row + len(part)
            yield part
            if self._row == len(runs):
                self._order, self._row, self._number = None, 0, self._number + 1
                if self._number == self._of.groups:
                    self._epoch, self._number = self._epoch + 1, 0

    def _mixed(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of the group's windows, and reads them into the room where it is new."""
        if self._order is None:
            if self._runs[0] != self._epoch:
                self._runs = self._epoch, self._of.order(self._epoch)
            runs = self._runs[1][self._number * RUNS_MIXED : (self._number + 1) * RUNS_MIXED]
            of_group, within = self._of.order_within(self._epoch, self._number, runs)
            if self._windows is None:
                of_group = runs[of_group]
            else:
                self._of.fill(self._room, runs)
            self._order = of_group, within
        return self._order

    def get_state(self) -> dict[str, Any]:
        of = self._of
        place = {"epoch": self._epoch, "group": self._number, "row": self._row}
        return place | {"tokens": of.packed.tokens, "seq_len": of.seq_len}

    def set_state(self, state: dict[str, Any]) -> None:
        for name, now in (("tokens", self._of.packed.tokens), ("seq_len", self._of.seq_len)):
            if state[name] != now:
                raise DataError(
                    f"the data position was saved with {state[name]:,} {name}, and {self._of.packed.folder} is read"
                    f" with {now:,}: put the old folder back, or start a new run"
                )
        self._epoch, self._number, self._row = state["epoch"], state["group"], state["row"]
        self._order = None


def loader(packed: Packed, *, prefetch: int, **how: Any) -> BatchSource:
    """Builds a loader of `PackedWindows` that makes `prefetch` batches ready in a thread."""
    require_sizes(prefetch=prefetch)
    batches: grain.IterDataset = PackedWindows(packed, **how)
    return BatchSource(ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch) if prefetch else batches)


def packed_loader(
    folder: str | Path, *, seq_len: int, batch_size: int, seed: int, prefetch: int, workers: int = 0
) -> BatchSource:
    """Returns batches without end of `{"tokens": (batch_size, seq_len + 1)}`, in the type of the folder's ids.

    An epoch has each window once, in another order than the one before; a batch may hold the end of one epoch and the
    start of the next. `workers`: threads that read at the same time, which a disk with a long way to it repays.
    """
    packed = open_packed(folder)
    return loader(packed, seq_len=seq_len, batch_size=batch_size, seed=seed, prefetch=prefetch, workers=workers)


def packed_validation(folder: str | Path, *, seq_len: int, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the held-out windows once, in order. Rows that only fill the last batch are end-of-text, not `COUNTED`.

    Yields nothing where the held-out documents have fewer tokens than a window: the caller says so.
    """
    require_sizes(seq_len=seq_len, batch_size=batch_size)
    packed = open_packed(folder)
    windows = count_windows(packed.validation_tokens, seq_len=seq_len, stride=seq_len)
    for first in range(0, windows, batch_size):
        count = min(batch_size, windows - first)
        ids = packed.read(VALIDATION, first * seq_len, count * seq_len + 1)
        packed.require_ids(ids, name=VALIDATION, at=first * seq_len)
        tokens = np.full((batch_size, seq_len + 1), packed.end_of_text, packed.dtype)
        tokens[:count] = np.lib.stride_tricks.sliding_window_view(ids, seq_len + 1)[::seq_len]
        yield {"tokens": tokens, COUNTED: np.arange(batch_size) < count}
