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

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.batch_source import BatchSource, Positioned
from plimsoll.data.loader_bytes import RUNS_MIXED
from plimsoll.data.packed.packed import Packed, open_packed, run_windows
from plimsoll.data.packed.shards import TOKENS, VALIDATION
from plimsoll.data.text.survey import count_windows
from plimsoll.errors import DataError
from plimsoll.types import COUNTED


class PackedWindows(Positioned):
    """Batches without end of `(batch_size, seq_len + 1)` ids; no window is dropped between epochs."""

    words: ClassVar = {"seq_len": "tokens of a window (--seq-len)"}

    def __init__(self, packed: Packed, *, seq_len: int, batch_size: int, seed: int, workers: int = 0) -> None:
        self.count = packed.windows(seq_len)
        if not self.count:
            raise DataError(
                f"{packed.folder} has {packed.tokens:,} tokens, fewer than the {seq_len + 1:,} of one window: use a"
                " smaller --seq-len, or pack more text"
            )
        super().__init__(size={"tokens": packed.tokens, "seq_len": seq_len}, name=str(packed.folder))
        self.packed, self.seq_len, self.batch_size = packed, seq_len, batch_size
        self.order_seed, self.workers = seed, workers
        self.run = run_windows(seq_len, packed.on_disk.itemsize)
        self.runs = -(-self.count // self.run)
        self.groups = -(-self.runs // RUNS_MIXED)

    def fill(self, room: np.ndarray, runs: np.ndarray) -> np.ndarray:
        """Reads the runs into the rows of `room`, and returns it."""

        def read(place: np.ndarray, run: int) -> None:
            first = run * self.run
            windows = min(self.run, self.count - first)
            self.packed.fill(place[: windows * self.seq_len + 1], TOKENS, first * self.seq_len)

        if self.workers > 1:
            with ThreadPoolExecutor(self.workers) as threads:
                list(threads.map(read, room, runs.tolist()))
        else:
            for place, run in zip(room, runs.tolist(), strict=False):
                read(place, run)
        return room

    def mixed(self, epoch: int, group: int, runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of the windows of these runs: index of the run among them, and of the window in it."""
        sizes = np.minimum(self.run, self.count - runs.astype(np.int64) * self.run)
        windows = np.flatnonzero(np.arange(self.run) < sizes[:, None])
        return np.divmod(np.random.default_rng([self.order_seed, 6, epoch, group]).permutation(windows), self.run)

    def walk(self, at: dict[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        length, on_disk = self.seq_len + 1, self.packed.on_disk
        room = windows = None  # a run that is one window is read into the batch; others here, and their windows mixed
        if self.run > 1:
            room = np.empty((min(RUNS_MIXED, self.runs), self.run * self.seq_len + 1), on_disk)
            windows = np.lib.stride_tricks.sliding_window_view(room, length, axis=1)[:, :: self.seq_len]
        order, of_epoch = np.empty(0, np.int32), -1  # of the runs: 4 bytes for each 64 KiB of the file
        runs, mixed = order, None
        while True:
            parts, wanted = [], self.batch_size
            while wanted:
                if mixed is None:
                    if of_epoch != at["epoch"]:
                        of_epoch = at["epoch"]
                        random = np.random.default_rng([self.order_seed, 7, of_epoch])
                        order = random.permutation(np.arange(self.runs, dtype=np.int32))
                    runs = order[at["group"] * RUNS_MIXED : (at["group"] + 1) * RUNS_MIXED]
                    mixed = self.mixed(of_epoch, at["group"], runs)
                    if room is not None:
                        self.fill(room, runs)
                run, within = (numbers[at["row"] : at["row"] + wanted] for numbers in mixed)
                if windows is None:
                    parts.append(self.fill(np.empty((len(run), length), on_disk), runs[run]))
                else:
                    parts.append(windows[run, within])
                wanted, at["row"] = wanted - len(run), at["row"] + len(run)
                if at["row"] == len(mixed[0]):
                    mixed, at["row"], at["group"] = None, 0, at["group"] + 1
                    if at["group"] == self.groups:
                        at["epoch"], at["group"] = at["epoch"] + 1, 0
            tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
            yield {"tokens": tokens.astype(self.packed.dtype, copy=False)}


def packed_loader(
    folder: str | Path, *, seq_len: int, batch_size: int, seed: int, prefetch: int, workers: int = 0
) -> BatchSource:
    """Returns batches without end of `{"tokens": (batch_size, seq_len + 1)}`, in the type of the folder's ids.

    An epoch has each window once, in another order than the one before; a batch may hold the end of one epoch and the
    start of the next. `workers`: threads that read at the same time, which a disk with a long way to it repays.
    """
    require_sizes(seq_len=seq_len, batch_size=batch_size)
    require_sizes(least=0, seed=seed, prefetch=prefetch, workers=workers)
    windows = PackedWindows(open_packed(folder), seq_len=seq_len, batch_size=batch_size, seed=seed, workers=workers)
    return BatchSource(windows, prefetch=prefetch)


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
        tokens = np.full((batch_size, seq_len + 1), packed.end_of_text, packed.dtype)
        tokens[:count] = np.lib.stride_tricks.sliding_window_view(ids, seq_len + 1)[::seq_len]
        yield {"tokens": tokens, COUNTED: np.arange(batch_size) < count}
