"""Copying batches to the device while earlier steps run.

A step that is called with NumPy arrays copies them in the thread that dispatches steps. Here another thread reads
batches from the source, and copies a few of them ahead with the step's sharding. The plan counts their bytes
(`planner/bytes.py`). On a CPU this would only add copies, so it is used on accelerators only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from plimsoll.types import Batch, Source

AHEAD = 2
"""Number of batches that are copied to the device before the steps that read them are dispatched."""


class OnDevice:
    """A `types.Source` of batches on the device. `state` returns the position after the newest returned batch."""

    def __init__(self, source: Source, put: Callable[[Batch], Any]) -> None:
        self._source, self._put = source, put
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plimsoll-put")
        self._coming: deque[Future[tuple[Any, dict[str, Any]]]] = deque()
        self._state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._fill()
        batch, self._state = self._coming.popleft().result()
        self._fill()
        return batch

    def _fill(self) -> None:
        while len(self._coming) < AHEAD:
            self._coming.append(self._thread.submit(self._next))

    def _next(self) -> tuple[Any, dict[str, Any]]:
        batch = self._put(next(self._source))
        return batch, self._source.state()

    def state(self) -> dict[str, Any]:
        return self._source.state() if self._state is None else self._state

    def restore(self, state: dict[str, Any]) -> None:
        self._forget()
        self._source.restore(state)
        self._state = None

    def close(self) -> None:
        """Drops the batches copied ahead, ends the thread, and closes the source."""
        self._forget()
        self._thread.shutdown()
        self._source.close()

    def _forget(self) -> None:
        """Drops the batches copied ahead, and waits until none is being copied."""
        for future in self._coming:
            future.cancel()
        for future in self._coming:
            if not future.cancelled():
                future.exception()
        self._coming.clear()
