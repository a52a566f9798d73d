"""Batches that are put on the device while the steps before them run.

An executable that is handed NumPy arrays copies them when it is called, on the thread that dispatches the steps. Here
another thread takes batches from the source and puts them, a few ahead, with the sharding that the step expects. Their
bytes are in the device's ledger (`planner/bytes.py`). On a CPU it would only add copies, and the loop does without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from plimsoll.types import Batch, Source

AHEAD = 2
"""Batches on the device, or on their way there, that no step has taken."""


class OnDevice:
    """A `types.Source` whose batches are on the device. `state` is the position after the last one that was taken."""

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
        """Ends the thread, which takes no further batch, and closes the source."""
        self._forget()
        self._thread.shutdown()
        self._source.close()

    def _forget(self) -> None:
        """Drops the batches that were put, and waits for the one under way."""
        for future in self._coming:
            future.cancel()
        for future in self._coming:
            if not future.cancelled():
                future.exception()
        self._coming.clear()
