"""Text to ids on all cores: blocks go in and come out in their order.

A tokenizer of `tokenizers` lets go of Python's lock while it works, so threads are enough; a block is encoded by one
of them, and what turns its ids into an array holds the lock for a small part of the time. `ray_encoding.py` is the same
on a cluster.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import numpy as np

from plimsoll.data.text.documents import Piece
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.units import KIB

BLOCK = 256 * KIB
"""Characters that end a block, with the piece that reaches them."""

Encoded = tuple[np.ndarray, np.ndarray]
"""int32 ids of the pieces of a block, end-of-text included, and how many each piece has."""


class Encoder(NamedTuple):
    """An encoder of several blocks at a time."""

    ahead: int
    """Blocks that are submitted before the result of the first is awaited."""
    submit: Callable[[Sequence[str], Sequence[bool]], Callable[[], Encoded]]
    """Begins to encode texts, with end-of-text where the second argument says so; returns what waits for the result."""


@contextmanager
def in_threads(tokenizer: TextTokenizer, *, workers: int | None) -> Iterator[Encoder]:
    """Opens an encoder of `workers` blocks at a time in this process; by default one for each core it may use."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parallelism is ours: threads inside would be too many
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(workers)
    try:
        yield Encoder(workers + 1, lambda texts, ends: pool.submit(tokenizer.encode_each, texts, ends).result)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def encoded(pieces: Iterable[Piece], encoder: Encoder) -> Iterator[tuple[list[Piece], np.ndarray, np.ndarray]]:
    """Yields blocks with their ids, in the order of the pieces; `encoder.ahead` blocks are held at most."""
    waiting: deque[tuple[list[Piece], Callable[[], Encoded]]] = deque()
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
            first, result = waiting.popleft()
            yield first, *result()
