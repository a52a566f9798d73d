"""SIGINT and SIGTERM as a request to save and stop. Imports nothing heavy: it is in force before JAX is imported."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """From `with` on, the first of the two signals is noted in `signal`; a second one ends the process at once.

    A signal that whoever started us ignores stays ignored. JAX's own callbacks swallow a KeyboardInterrupt, which
    is one more reason to have none.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in NUMBERS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._request)
            except ValueError:  # not the main thread: whoever runs us handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        for known in self._before:
            signal.signal(known, signal.SIG_DFL)


def hold() -> None:
    """Keeps both signals waiting: for a process that is about to become another by exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def release() -> None:
    """Delivers what was kept waiting; after the handlers are in force."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
