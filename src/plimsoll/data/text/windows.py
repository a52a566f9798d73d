"""Windows of `seq_len + 1` tokens, cut from the token stream of the documents.

Every document is followed by end-of-text, and windows may span documents. With stride = seq_len the concatenated inputs
are the token stream. Documents are encoded in blocks of at least 16 Ki characters, in parallel by several threads. A
saved position names the block with the next window's first token, so that restoring it encodes only the blocks of that
window again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from plimsoll.data import cores, require_sizes
from plimsoll.data.in_order import encoding_pool, in_order
from plimsoll.data.loader import Stream
from plimsoll.data.loader_bytes import MOST_THREADS
from plimsoll.data.text.documents import Documents, Piece
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.errors import DataError
from plimsoll.units import KIB

BLOCK = 16 * KIB
"""Minimum characters of a block. The piece (up to 64 KiB) that reaches this number is the block's last."""


class Block(NamedTuple):
    """Ids of some pieces of text, and the positions before and after them."""

    ids: np.ndarray
    start: dict | None
    """Position before the block; None for the beginning of the documents."""
    after: dict


Unencoded = tuple[list[Piece], dict | None, dict]
"""Pieces of a block, and the positions before and after it."""


def encoding_threads() -> int:
    """Returns the number of threads that encode a stream: one per core of this process, at most MOST_THREADS (8).

    Returns 1 if JAX_PLATFORMS is cpu: further threads would make training steps a fifth slower, and take memory (notes,
    "The card never waits").
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return 1
    return min(MOST_THREADS, cores())


def token_blocks(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    start: dict | None = None,
    threads: int = 1,
) -> Iterator[Block]:
    """Yields the ids of the training documents in blocks, from the position `start`.

    Each of several `threads` encodes a block, and one more block is read ahead. Blocks and order do not depend on
    `threads`.
    """

    def encoded(pieces: list[Piece]) -> np.ndarray:
        return tokenizer.encode_pieces(pieces).astype(tokenizer.dtype)

    unencoded = _unencoded(documents, start)
    if threads == 1:
        for pieces, before, after in unencoded:
            yield Block(encoded(pieces), before, after)
        return
    with encoding_pool(threads) as pool:
        blocks = in_order(unencoded, lambda block: pool.submit(encoded, block[0]).result, threads)
        for (_, before, after), ids in blocks:
            yield Block(ids, before, after)


def _unencoded(documents: Documents, start: dict | None) -> Iterator[Unencoded]:
    """Yields blocks of training pieces, of at least BLOCK characters, with the positions before and after a block."""
    pieces: list[Piece] = []
    characters = 0
    position = start or {}
    for piece in documents.pieces(start):
        if not piece.held_out:
            pieces.append(piece)
            characters += len(piece.text)
        elif not pieces:
            start = piece.position  # the block is still empty: let it start after this held-out piece
        position = piece.position
        if characters >= BLOCK:
            yield pieces, start, position
            pieces, characters, start = [], 0, position
    if pieces:
        yield pieces, start, position


def no_window(name: str, tokens: int, seq_len: int) -> DataError:
    """Returns the error for a text that is shorter than a window."""
    return DataError(
        f"{name} has {tokens:,} tokens for training, fewer than the {seq_len + 1:,} of one window: use a smaller"
        " --seq-len, or more text"
    )


class TokenWindows(Stream):
    """Endless stream of windows: arrays of `seq_len + 1` ids in `tokenizer.dtype`."""

    start: ClassVar = {"epoch": 0, "position": None, "skip": 0, "windows": 0}
    """`position` is the position in the text before a block, `skip` the number of tokens from there to the next window,
    and `windows` the number of windows so far in this epoch."""

    def __init__(
        self,
        documents: Documents,
        tokenizer: TextTokenizer,
        *,
        seq_len: int,
        stride: int | None = None,
        threads: int = 1,
    ) -> None:
        """Checks the sizes. `threads` is as for `token_blocks`."""
        super().__init__(facts={})
        require_sizes(seq_len=seq_len, stride=stride, threads=threads)
        self.documents = documents
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.stride = stride or seq_len
        self.threads = threads

    def walk(self, at: dict[str, Any]) -> Iterator[np.ndarray]:
        while True:
            ids = np.empty(0, self.tokenizer.dtype)
            kept = deque[Block]()  # the blocks that hold `ids`
            for block in token_blocks(self.documents, self.tokenizer, start=at["position"], threads=self.threads):
                kept.append(block)
                ids = _without_skipped(np.concatenate([ids, block.ids]), kept, at)
                while len(ids) > at["skip"] + self.seq_len:
                    # A copy: a view would keep its whole block alive in the shuffle buffer.
                    window = ids[at["skip"] : at["skip"] + self.seq_len + 1].copy()
                    at["skip"] += self.stride
                    at["windows"] += 1
                    ids = _without_skipped(ids, kept, at)
                    yield window
            if not at["windows"]:
                raise no_window(self.documents.name, len(ids), self.seq_len)
            at |= {"epoch": at["epoch"] + 1, "position": None, "skip": 0, "windows": 0}


def _without_skipped(ids: np.ndarray, kept: deque[Block], at: dict[str, Any]) -> np.ndarray:
    """Drops blocks that end before the next window from `kept`, and updates `at`. Returns the remaining ids."""
    while kept and len(kept[0].ids) <= at["skip"]:
        skipped = kept.popleft()
        ids = ids[len(skipped.ids) :]
        at["position"], at["skip"] = skipped.after, at["skip"] - len(skipped.ids)
    if kept:
        at["position"] = kept[0].start
    return ids
