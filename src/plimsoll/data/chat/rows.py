"""Batches of rows (training sequences) of whole documents, in a shuffled order.

An epoch permutes all documents. Groups of thousands are packed into rows (packing.py), and the rows of a group are
shuffled. Seed, epoch and lengths determine the rows, so a position in the data is an epoch, a group and a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plimsoll.data import require_sizes
from plimsoll.data.chat.encoded import EncodedDocuments
from plimsoll.data.chat.packing import best_fit, group_size
from plimsoll.data.chat.row_bytes import DTYPES, INPUTS, LABELS, LEARNED, POSITIONS, SEGMENTS
from plimsoll.data.loader import Batch, GroupStream, Order
from plimsoll.errors import DataError

EMPTY = 0
"""Segment number of the empty positions at the end of a row."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Statistics of the rows of the first epoch."""

    documents: int
    """Number of documents in the rows."""
    tokens: int
    """Number of tokens in the rows, after long documents are cut."""
    cut: int
    """Number of documents longer than a row."""
    cut_tokens: int
    """Number of tokens that are cut from the ends of documents longer than a row."""
    left_out: int
    """Number of documents left out: none of their first `seq_len` tokens counts in the loss, or `max_tokens` was
    reached."""
    rows: int
    """Number of rows in the first epoch. Other epochs have another order, and may have a few more or fewer."""
    empty: float
    """Share of the rows' positions that are empty."""
    learned: float
    """Share of all tokens, before cutting, that count in the loss."""
    seq_len: int
    """Tokens per row."""

    def lines(self) -> list[str]:
        """Returns the lines that are printed before training."""
        seq_len = self.seq_len
        said = [
            f"data: {self.documents:,} documents, {self.tokens:,} tokens, {self.learned:.1%} of tokens to be learned"
        ]
        if self.cut:
            said.append(
                f"cut: {self.cut:,} documents are longer than --seq-len {seq_len:,}; {self.cut_tokens:,} tokens at"
                " their ends are not learned"
            )
        if self.left_out:
            said.append(
                f"left out: {self.left_out:,} documents in whose first {seq_len:,} tokens nothing is to be learned"
            )
        return [*said, f"rows: {self.rows:,} of {seq_len:,} tokens an epoch, {self.empty:.2%} of positions empty"]


class PackedRows(GroupStream):
    """Endless batches of `batch_size` rows. A batch may span epochs, so no row is dropped.

    A batch has the arrays of `DTYPES`. `labels` are the ids that follow `input_ids`. `learned` is 1 if a label counts
    in the loss, else 0; it is 0 at the last token of a document. `segments` numbers the documents of a row from 1; it
    is EMPTY at empty positions. `positions` count from 0 in each segment.
    """

    def __init__(
        self,
        documents: EncodedDocuments,
        *,
        seq_len: int,
        batch_size: int,
        seed: int | None,
        truncate: bool = True,
        max_tokens: int | None = None,
        name: str = "the data set",
    ) -> None:
        """If `seed` is None, documents keep their order. The document that reaches `max_tokens` is the last used."""
        facts = {"tokens": documents.tokens, "documents": documents.count, "seq_len": seq_len}
        super().__init__(facts=facts, name=name)
        self.encoded, self.seq_len, self.batch_size, self.order_seed = documents, seq_len, batch_size, seed
        lengths = np.diff(documents.starts)
        self._require_fit(lengths, truncate)
        used = np.flatnonzero(documents.first < seq_len).astype(np.int32)
        if not len(used):
            raise DataError(
                f"nothing in the first {seq_len:,} tokens (--seq-len) of the {documents.count:,} documents of {name} is"
                " to be learned: use a larger --seq-len, or learn all tokens with --loss-on all"
            )
        held = np.minimum(lengths[used], seq_len)
        if max_tokens is not None:
            held = held[: np.searchsorted(held.cumsum(), max_tokens) + 1]
            used = used[: len(held)]
        self.used = None if len(used) == documents.count else used
        """Indices of the documents that are packed into rows; None if all documents are."""
        self.count, self.tokens = len(used), int(held.sum())
        self.group = group_size(self.tokens / self.count, seq_len)
        self.groups = -(-self.count // self.group)
        self.order = Order(self.count, seed)
        self._group: list[np.ndarray] = []

    def _require_fit(self, lengths: np.ndarray, truncate: bool) -> None:
        longer = lengths > self.seq_len
        self.cut, self.cut_tokens = int(longer.sum()), int((lengths[longer] - self.seq_len).sum())
        if self.cut and not truncate:
            raise DataError(
                f"{self.cut:,} of the {len(lengths):,} documents of {self.name} are longer than --seq-len"
                f" {self.seq_len:,}, the longest has {lengths.max():,} tokens, and --no-truncate refuses to cut them:"
                f" use --seq-len {lengths.max():,}, leave them out of the file, or leave --no-truncate out"
            )

    def packed(self, epoch: int, group: int) -> list[np.ndarray]:
        """Returns the rows of a group. A row is an array of document indices."""
        documents = self.order.of_epoch(epoch)[group * self.group : (group + 1) * self.group]
        if self.used is not None:
            documents = self.used[documents]
        lengths = self.encoded.starts[documents + 1] - self.encoded.starts[documents]
        rows = [documents[row] for row in best_fit(np.minimum(lengths, self.seq_len), self.seq_len)]
        if self.order_seed is None:
            return rows
        shuffled = np.random.default_rng([self.order_seed, 8, epoch, group]).permutation(len(rows))
        return [rows[row] for row in shuffled]

    def rows(self, epoch: int) -> int:
        """Returns the number of rows in an epoch. Counting takes a second per million documents."""
        return sum(len(self.packed(epoch, group)) for group in range(self.groups))

    def rows_of(self, epochs: float) -> int:
        """Returns the number of rows in the first `epochs` epochs, rounded if the last epoch is a fraction."""
        whole = int(epochs)
        part = epochs - whole
        return sum(map(self.rows, range(whole))) + (round(part * self.rows(whole)) if part else 0)

    def packing(self) -> Packing:
        """Returns statistics of the first epoch."""
        rows = self.rows(0)
        return Packing(
            documents=self.count,
            tokens=self.tokens,
            cut=self.cut,
            cut_tokens=self.cut_tokens,
            left_out=self.encoded.count - self.count,
            rows=rows,
            empty=1 - self.tokens / (rows * self.seq_len),
            learned=self.encoded.learned / self.encoded.tokens,
            seq_len=self.seq_len,
        )

    def arrays(self, rows: list[np.ndarray]) -> Batch:
        """Returns the batch of `rows` (document indices), padded to `batch_size` with empty rows."""
        arrays = {name: np.zeros((self.batch_size, self.seq_len), dtype) for name, dtype in DTYPES.items()}
        arrays[INPUTS][:], arrays[POSITIONS][:] = self.encoded.end_of_text, np.arange(self.seq_len)
        for place, documents in enumerate(rows):
            row, end = {name: values[place] for name, values in arrays.items()}, 0
            for segment, (ids, learned) in enumerate(self.encoded.read(documents.tolist(), self.seq_len), 1):
                begin, end = end, end + len(ids)
                row[INPUTS][begin:end] = ids
                row[LABELS][begin : end - 1] = ids[1:]
                row[LEARNED][begin : end - 1] = learned[1:]
                row[SEGMENTS][begin:end] = segment
                row[POSITIONS][begin:end] = np.arange(end - begin)
            row[POSITIONS][end:] = np.arange(self.seq_len - end)
        return arrays

    def load(self, epoch: int, group: int) -> tuple[int, int]:
        self._group = self.packed(epoch, group)
        return len(self._group), 0

    def take(self, first: int, end: int) -> list[np.ndarray]:
        return self._group[first:end]

    def join(self, parts: list[list[np.ndarray]]) -> Batch:
        return self.arrays([row for part in parts for row in part])


def validation_rows(
    documents: EncodedDocuments, *, seq_len: int, batch_size: int, max_tokens: int | None = None
) -> Iterator[Batch]:
    """Yields batches with each document once, packed in the order of the data. Empty rows pad the last batch.

    Yields nothing if no token counts in the loss; the caller must report this.

    Args:
        documents: `validation` of the result of `encoded_examples`, or `train` of another data set.
        seq_len: Tokens per row. A longer document is cut at its end.
        batch_size: Rows per batch.
        max_tokens: Number of tokens to read; the document that reaches it is the last. None for all.
    """
    require_sizes(seq_len=seq_len, batch_size=batch_size, max_tokens=max_tokens)
    if not (documents.first < seq_len).any():
        return
    packed = PackedRows(documents, seq_len=seq_len, batch_size=batch_size, seed=None, max_tokens=max_tokens)
    waiting: list[np.ndarray] = []
    for group in range(packed.groups):
        waiting += packed.packed(0, group)
        while len(waiting) >= batch_size:
            yield packed.arrays(waiting[:batch_size])
            del waiting[:batch_size]
    if waiting:
        yield packed.arrays(waiting)
