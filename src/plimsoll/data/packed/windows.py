"""Batches of windows of a packed folder, for training (permuted anew in each epoch) and for evaluation.

A memory map would leave every touched page in the resident set, which counts as memory of a run on a CPU. Returning
pages by `madvise` costs a page fault per window. Positioned reads leave only the batch in memory (docs/packing.md).
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
    """Returns endless batches of `{"tokens": (batch_size, seq_len + 1)}`, in the type of the folder's ids.

    Each epoch has every window once, in a new order. A batch may hold the end of one epoch and the start of the next.
    `workers` threads read at the same time.
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
    """Yields batches of all validation windows, or of the first `most`, in order.

    Rows that pad the last batch hold end-of-text; the array "counted" is False for them. Yields nothing if the held-out
    documents do not fill a window; the caller must report this.
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
