"""Training batches of interactions: rows of `length + 1` ids, padded on the right, in another order each epoch.

A user's items fill one row, or several rows that each begin with the last item of the row before. So every item of a
user except the first is a label exactly once per epoch. Users with a single training item have nothing
to predict, and no row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from plimsoll.data.loader import Batch, Loader, permuted
from plimsoll.data.loader_bytes import order_bytes
from plimsoll.errors import DataError
from plimsoll.recipes.recommend.interactions import Interactions

ITEMS = "items"
"""Name of the array of a batch: (batch, length + 1), int32. Inputs are all columns except the last, labels all
except the first."""


class TrainingRows(Sequence[np.ndarray]):
    """Unpadded rows by index, in the order of users. Each takes 12 bytes, in addition to the data set."""

    def __init__(self, interactions: Interactions, *, length: int) -> None:
        self.interactions = interactions
        self.length = length
        firsts = interactions.offsets[:-1]
        ends = interactions.ends["train"]
        rows_of = -(-(ends - firsts - 1) // length)  # no row for a single item
        if not rows_of.any():
            raise DataError(
                f"{interactions.folder} has no user with two items for training: the last two items of each are held"
                " out. Prepare it with a higher --k-core, or from a file with longer sequences"
            )
        before = np.cumsum(rows_of) - rows_of
        number = np.arange(rows_of.sum()) - np.repeat(before, rows_of)
        self._firsts: Int64[np.ndarray, " rows"] = np.repeat(firsts, rows_of) + number * length
        self._sizes: Int32[np.ndarray, " rows"] = np.minimum(
            np.repeat(ends, rows_of) - self._firsts, length + 1
        ).astype(np.int32)
        self.labels = int(self._sizes.sum()) - len(self._sizes)
        """Number of labels per epoch."""

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, index: Any) -> Any:
        first = self._firsts[index]
        return self.interactions.sequences[first : first + self._sizes[index]]

    def held_bytes(self) -> int:
        """Returns the bytes of rows, row order, and data set (memory-mapped or not) without names and embeddings."""
        data = self.interactions
        of_data = 4 * len(data) + data.offsets.nbytes + 4 * (data.items + 1)
        return of_data + self._firsts.nbytes + self._sizes.nbytes + order_bytes(len(self))


def interaction_loader(rows: TrainingRows, *, batch_size: int, seed: int, prefetch: int = 2) -> Loader:
    """Returns an endless `types.Source` of `items` (batch, length + 1).

    No row is dropped: a batch may hold the end of one epoch and the start of the next.
    """

    def read(indices: np.ndarray) -> Batch:
        return {ITEMS: padded([rows[index] for index in indices.tolist()], length=rows.length + 1)}

    facts = {"rows": len(rows), "interactions": len(rows.interactions)}
    return permuted(read, len(rows), batch_size=batch_size, seed=seed, prefetch=prefetch, facts=facts)


def padded(histories: Sequence[Int32[np.ndarray, " items"]], *, length: int) -> Int32[np.ndarray, "users length"]:
    """Returns the newest `length` items of each history as a batch, padded on the right."""
    rows = np.zeros((len(histories), length), np.int32)
    for row, items in zip(rows, histories, strict=True):
        last = items[-length:]
        row[: len(last)] = last
    return rows
