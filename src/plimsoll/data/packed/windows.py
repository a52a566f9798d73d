"""Windows of a packed folder: to train on, permuted anew in each epoch, and to evaluate on.

Why no memory map: every page that was touched would stay in the resident set, which is what a run on a CPU is measured
by, and handing pages back (madvise) costs a page fault a window. Positioned reads leave nothing behind but the batch
(docs/packing.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.loader import Batch, Loader, permuted
from plimsoll.data.packed.packed import open_packed
from plimsoll.data.packed.shards import VALIDATION
from plimsoll.data.text.survey import count_windows
from plimsoll.data.text.windows import no_window
from plimsoll.types import COUNTED


def packed_loader(
    folder: str | Path, *, seq_len: int, batch_size: int, seed: int, prefetch: int, workers: int = 0
) -> Loader:
    """Returns batches without end of `{"tokens": (batch_size, seq_len + 1)}`, in the type of the folder's ids.

    An epoch has each window once, in another order than the one before; a batch may hold the end of one epoch and the
    start of the next. `workers`: threads that read at the same time.
    """
    require_sizes(seq_len=seq_len, batch_size=batch_size)
    require_sizes(least=0, seed=seed, prefetch=prefetch, workers=workers)
    packed = open_packed(folder)
    count = packed.windows(seq_len)
    if not count:
        raise no_window(str(packed.folder), packed.tokens, seq_len)

    def read(indices: np.ndarray) -> Batch:
        return {"tokens": packed.rows(indices, length=seq_len + 1, stride=seq_len, workers=workers)}

    facts = {"tokens": packed.tokens, "seq_len": seq_len}
    name = str(packed.folder)
    return permuted(read, count, batch_size=batch_size, seed=seed, prefetch=prefetch, facts=facts, name=name)


def packed_validation(folder: str | Path, *, seq_len: int, batch_size: int, most: int | None = None) -> Iterator[Batch]:
    """Yields the held-out windows, or the first `most` of them, once, in order.

    Rows that only fill the last batch are end-of-text, not `COUNTED`. Yields nothing where the held-out documents have
    fewer tokens than a window: the caller says so.
    """
    require_sizes(seq_len=seq_len, batch_size=batch_size)
    packed = open_packed(folder)
    windows = count_windows(packed.validation_tokens, seq_len=seq_len, stride=seq_len)
    windows = windows if most is None else min(windows, most)
    for first in range(0, windows, batch_size):
        count = min(batch_size, windows - first)
        ids = packed.read(VALIDATION, first * seq_len, count * seq_len + 1)
        tokens = np.full((batch_size, seq_len + 1), packed.end_of_text, packed.dtype)
        tokens[:count] = np.lib.stride_tricks.sliding_window_view(ids, seq_len + 1)[::seq_len]
        yield {"tokens": tokens, COUNTED: np.arange(batch_size) < count}
