"""Windows of `seq_len + 1` tokens, cut from the token stream of the documents; a Grain data set.

Every document is followed by end-of-text, and windows do not respect where documents end: with
stride = seq_len the inputs, one after another, are the token stream. Documents are encoded in blocks of about
16 KiB (the tokenizer is parallel over them). The state names the block that holds the next window's first
token, so restoring encodes at most the blocks that window touches again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import grain
import numpy as np

from plimsoll.data.text.documents import Documents, Piece
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.errors import DataError, RecipeError
from plimsoll.units import KIB

BLOCK = 16 * KIB
"""Characters that end a block: it is complete with the piece (up to 64 KiB) that reaches them."""


class Block(NamedTuple):
    """Ids of some documents, and the positions of the documents around them."""

    ids: np.ndarray
    start: dict | None
    """Position before the block; None for the beginning of the documents."""
    after: dict


def token_blocks(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    held_out: bool | None = False,
    start: dict | None = None,
) -> Iterator[Block]:
    """Yields the ids of the training documents; of the held-out ones if `held_out`; of all if it is None."""
    pieces: list[Piece] = []
    characters = 0
    position = start or {}
    for piece in documents.pieces(start):
        if held_out is None or piece.held_out == held_out:
            pieces.append(piece)
            characters += len(piece.text)
        elif not pieces:
            start = piece.position  # nothing to encode up to here
        position = piece.position
        if characters >= BLOCK:
            yield Block(tokenizer.encode_pieces(pieces).astype(tokenizer.dtype), start, position)
            pieces, characters, start = [], 0, position
    if pieces:
        yield Block(tokenizer.encode_pieces(pieces).astype(tokenizer.dtype), start, position)


class TokenWindows(grain.IterDataset):
    """A data set of arrays of `seq_len + 1` ids, in `tokenizer.dtype`."""

    def __init__(
        self,
        documents: Documents,
        tokenizer: TextTokenizer,
        *,
        seq_len: int,
        stride: int | None = None,
        epochs: int | None = None,
        held_out: bool | None = False,
    ) -> None:
        """Checks the sizes. `epochs=None` repeats without end; `held_out` as for `token_blocks`."""
        super().__init__()
        for name, value in (("--seq-len", seq_len), ("--stride", stride), ("--epochs", epochs)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} must be 1 or more, got {value}")
        self.documents, self.tokenizer = documents, tokenizer
        self.seq_len, self.stride, self.epochs, self.held_out = seq_len, stride or seq_len, epochs, held_out

    def __iter__(self) -> grain.DatasetIterator:
        return _WindowIterator(self)


class _WindowIterator(grain.DatasetIterator):
    def __init__(self, windows: TokenWindows) -> None:
        super().__init__()
        self._of = windows
        self._begin(epoch=0, position=None, skip=0, windows=0, dropped=0)

    def _begin(self, *, epoch: int, position: dict | None, skip: int, windows: int, dropped: int) -> None:
        self._epoch, self._windows, self._dropped = epoch, windows, dropped
        self._start = position
        """Position of the documents before the first block that is kept or yet to be read."""
        self._skip = skip
        """Tokens from the start of the first block kept to the first token of the next window."""
        self._kept: deque[Block] = deque()
        self._tokens = 0
        """Tokens in the blocks kept."""
        self._blocks: Iterator[Block] | None = None

    def __next__(self) -> np.ndarray:
        self._assert_not_closed()
        while self._of.epochs is None or self._epoch < self._of.epochs:
            if self._fill(self._of.seq_len + 1):
                window = self._window()
                self._skip += self._of.stride
                self._windows += 1
                return window
            if not self._windows:
                kind = {False: "for training", True: "held out", None: "in all"}[self._of.held_out]
                raise DataError(
                    f"{self._of.documents.name} has {self._tokens} tokens {kind}, fewer than the "
                    f"{self._of.seq_len + 1} of one window: use a smaller --seq-len, or more text."
                )
            dropped = self._dropped + max(0, self._tokens - self._skip)
            self._begin(epoch=self._epoch + 1, position=None, skip=0, windows=0, dropped=dropped)
        raise StopIteration

    def _fill(self, needed: int) -> bool:
        """Keeps blocks until `needed` tokens follow the skipped ones; false if the documents end before."""
        if self._blocks is None:
            of = self._of
            self._blocks = token_blocks(of.documents, of.tokenizer, held_out=of.held_out, start=self._start)
        while True:
            while self._kept and len(self._kept[0].ids) <= self._skip:
                block = self._kept.popleft()
                self._start = block.after
                self._skip -= len(block.ids)
                self._tokens -= len(block.ids)
            if self._tokens >= self._skip + needed:
                return True
            block = next(self._blocks, None)
            if block is None:
                return False
            self._kept.append(block)
            self._tokens += len(block.ids)

    def _window(self) -> np.ndarray:
        """Returns a copy of the next window: a view would keep its whole block alive in the shuffle buffer."""
        window = np.empty(self._of.seq_len + 1, self._of.tokenizer.dtype)
        filled, skip = 0, self._skip
        for block in self._kept:
            part = block.ids[skip : skip + len(window) - filled]
            window[filled : filled + len(part)] = part
            filled += len(part)
            skip = 0
            if filled == len(window):
                break
        return window

    def get_state(self) -> dict[str, Any]:
        """Returns the position. `windows` are those of this epoch, `dropped` the tokens at the ends of earlier ones."""
        start, skip = self._start, self._skip
        for block in self._kept:
            if skip < len(block.ids):
                start = block.start
                break
            start = block.after
            skip -= len(block.ids)
        return {
            "epoch": self._epoch,
            "position": start,
            "skip": skip,
            "windows": self._windows,
            "dropped": self._dropped,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._begin(**state)
