"""Windows of text for the evaluation of a language model. Every token of the text is a label exactly once.

The input of each document, and of each window of a long document, begins with the beginning-of-text token, without
earlier context. Memory holds a batch and a piece of a document. End-of-text is no label, so that the loss depends
little on how a file was split into documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from plimsoll.data.text.documents import Piece
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.types import IGNORE

SHORTEST = 64
"""Minimum tokens per row. Rows are padded to 64, 128, ... tokens, so that few lengths are compiled."""


class Rows(NamedTuple):
    """int32 arrays of (rows, length). A label of `IGNORE` does not count in the loss."""

    inputs: np.ndarray
    labels: np.ndarray
    documents: int
    """Number of documents that ended in these rows."""
    bytes: int
    """Number of bytes of UTF-8 text that were read for these rows."""


def scored_rows(
    pieces: Iterable[Piece], tokenizer: TextTokenizer, *, begin: int, seq_len: int, batch_size: int
) -> Iterator[Rows]:
    """Yields batches of `batch_size` rows of at most `seq_len` tokens. Empty rows may pad the last batch.

    `begin` is the id of the beginning-of-text token, the first input of each row.
    """
    rows: list[np.ndarray] = []
    documents = read = 0
    left = np.empty(0, np.int32)
    for piece in pieces:
        left = np.concatenate([left, tokenizer.encode(piece.text)])
        documents, read = documents + piece.last, read + len(piece.text.encode())
        while len(left) >= seq_len or (piece.last and len(left)):
            rows.append(left[:seq_len])
            left = left[seq_len:]
            if len(rows) == batch_size:
                yield Rows(*_filled(rows, begin, seq_len, batch_size), documents, read)
                rows, documents, read = [], 0, 0
    if rows or documents:
        yield Rows(*_filled(rows, begin, seq_len, batch_size), documents, read)


def _filled(rows: Sequence[np.ndarray], begin: int, seq_len: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    longest = max(map(len, rows), default=1)
    length = SHORTEST
    while length < longest:
        length *= 2
    length = min(length, seq_len)
    inputs = np.zeros((batch_size, length), np.int32)
    labels = np.full((batch_size, length), IGNORE, np.int32)
    for at, row in enumerate(rows):
        inputs[at, 0], inputs[at, 1 : len(row)] = begin, row[:-1]
        labels[at, : len(row)] = row
    return inputs, labels
