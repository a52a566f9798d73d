"""Text to ids on all cores: blocks go in and come out in their order.

A tokenizer of `tokenizers` lets go of Python's lock while it works, so threads are enough; a block is encoded by one
of them, and what turns its ids into an array holds the lock for a small part of the time. `ray_encoding.py` is the same
on a cluster.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import TracebackType
from typing import Protocol

import numpy as np

from plimsoll.data.text.documents import Piece
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.units import KIB

BLOCK = 256 * KIB
"""Characters that end a block, with the piece that reaches them."""

Encoded = tuple[np.ndarray, np.ndarray]
"""int32 ids of the pieces of a block, end-of-text included, and how many each piece has."""


class Pending(Protocol):
    """A block that is being encoded."""

    def result(self) -> Encoded: ...


class Encoder(Protocol):
    """An encoder of several blocks at a time."""

    ahead: int
    """Blocks that are submitted before the result of the first is awaited."""

    def submit(self, texts: Sequence[str], ends: Sequence[bool]) -> Pending: ...


class Threads:
    """An encoder of `workers` blocks at a time in this process."""

    def __init__(self, tokenizer: TextTokenizer, *, workers: int) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parallelism is ours: threads inside would be too many
        self._tokenizer, self._pool = tokenizer, ThreadPoolExecutor(workers)
        self.ahead = workers + 1

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, texts: Sequence[str], ends: Sequence[bool]) -> Pending:
        return self._pool.submit(self._tokenizer.encode_each, texts, ends)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoded(pieces: Iterable[Piece], encoder: Encoder) -> Iterator[tuple[list[Piece], np.ndarray, np.ndarray]]:
    """Yields blocks with their ids, in the order of the pieces; `encoder.ahead` blocks are held at most."""
    waiting: deque[tuple[list[Piece], Pending]] = deque()
    block: list[Piece] = []
    size = 0
    for piece in chain(pieces, [None]):
        if piece is not None:
            block.append(piece)
            size += len(piece.text)
        if block and (piece is None or size >= BLOCK):
            waiting.append((block, encoder.submit([piece.text for piece in block], [piece.last for piece in block])))
            block, size = [], 0
        while len(waiting) > (encoder.ahead if piece is not None else 0):
            first, pending = waiting.popleft()
            yield first, *pending.result()
