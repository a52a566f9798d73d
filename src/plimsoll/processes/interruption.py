"""SIGINT and SIGTERM as a request to save and stop. Imports nothing heavy, so it works before JAX is imported."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Handler of both signals inside its `with` block. The first signal is noted; a second one ends the process.

    A signal that our parent ignores stays ignored. No KeyboardInterrupt is raised: JAX's callbacks swallow it.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """Number of the signal that was received."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in NUMBERS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._request)
            except ValueError:  # not the main thread: our caller handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)


def hold() -> None:
    """Blocks both signals, in a process that is about to become another by exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def release() -> None:
    """Unblocks both signals and delivers those that wait. Call it once the handlers are installed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
