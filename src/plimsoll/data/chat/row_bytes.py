"""Names the arrays of a batch, and predicts the host memory of the loader in rows.py.

Planning imports this file to avoid importing Grain.
"""

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
"""Names and types of the arrays of a batch, all of shape (rows, tokens)."""
PACKED = 160
"""Host bytes that a group takes for each of its documents, while it is packed into rows and read."""
READ = 7 * MIB
"""Bytes of Grain's and NumPy's code that the first batch loads (see `loader_bytes.READ_FROM_CACHE`)."""


def rows_bytes(*, documents: int, tokens: int, seq_len: int, batch_size: int, prefetch: int) -> int:
    """Returns the host bytes of the loader: indices of all documents, a group during packing, and batches in flight.

    In flight are the prefetched batches, one that waits to enter the queue, one that the consumer holds and one under
    construction.

    Args:
        documents: Number of documents in the data set.
        tokens: Number of tokens in all documents.
        seq_len: Tokens per row.
        batch_size: Rows per batch.
        prefetch: Batches that a thread prepares in advance.
    """
    batch = batch_size * seq_len * sum(np.dtype(dtype).itemsize for dtype in DTYPES.values())
    group = min(documents, group_size(tokens / max(documents, 1), seq_len))
    return READ + 16 * documents + order_bytes(documents) + PACKED * group + (prefetch + 3) * batch
