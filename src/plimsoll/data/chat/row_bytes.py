"""Arrays of a batch of rows and bytes of their loader (rows.py), without Grain: a plan needs no more of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from plimsoll.data.chat.packing import group_size
from plimsoll.data.loader_bytes import order_bytes
from plimsoll.units import MIB

INPUTS, LABELS, LEARNED, SEGMENTS, POSITIONS = "input_ids", "labels", "learned", "segments", "positions"
DTYPES: Mapping[str, str] = {
    INPUTS: "int32",
    LABELS: "int32",
    LEARNED: "float32",
    SEGMENTS: "int32",
    POSITIONS: "int32",
}
"""Arrays of a batch, each of (rows, tokens), and their types."""
PACKED = 160
"""Bytes of a document while its group is packed and its rows are read."""
READ = 7 * MIB
"""Bytes of code of Grain and NumPy that come back with the first batch (`loader_bytes.READ_FROM_CACHE`)."""


def rows_bytes(*, documents: int, tokens: int, seq_len: int, batch_size: int, prefetch: int) -> int:
    """Returns the host bytes of the loader: numbers of all documents, a group as it is packed, and batches in flight.

    In flight are the prefetched batches, one that waits to enter the queue, one that the consumer holds and one that is
    being built.

    Args:
        documents: Documents of the data set.
        tokens: Tokens of all of them.
        seq_len: Tokens of a row.
        batch_size: Rows of a batch.
        prefetch: Batches that a thread makes ready.
    """
    batch = batch_size * seq_len * sum(np.dtype(dtype).itemsize for dtype in DTYPES.values())
    group = min(documents, group_size(tokens / max(documents, 1), seq_len))
    return READ + 16 * documents + order_bytes(documents) + PACKED * group + (prefetch + 3) * batch
