"""Processes the items of a stream in threads. Results are yielded in the order of the items."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def encoding_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Opens a pool of threads for encoding. On exit, work that has not begun is cancelled."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the pool has enough threads: the library should start none
    pool = ThreadPoolExecutor(threads, thread_name_prefix="plimsoll-encode")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_blocks(items: Iterable[Item], size_of: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """Yields blocks: lists of consecutive items whose `size_of` sums to `least` or more; the last may be smaller."""
    block, size = list[Item](), 0
    for item in items:
        block.append(item)
        size += size_of(item)
        if size >= least:
            yield block
            block, size = [], 0
    if block:
        yield block


def in_order(
    items: Iterable[Item], submit: Callable[[Item], Callable[[], Result]], ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Yields items and their results in order. At most `ahead` results are pending.

    `submit` starts the work on an item, and returns a function that waits for its result.
    """
    waiting: deque[tuple[Item, Callable[[], Result]]] = deque()
    for item in items:
        waiting.append((item, submit(item)))
        if len(waiting) > ahead:
            first, result = waiting.popleft()
            yield first, result()
    while waiting:
        first, result = waiting.popleft()
        yield first, result()
