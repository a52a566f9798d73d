"""Handlers for SIGINT, SIGTERM and SIGHUP, which request to save and stop. Works before JAX is imported."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request to save and stop. SIGHUP is sent when the terminal closes or its connection is lost."""
ONE_REQUEST_SECONDS = 1.0
"""Seconds after the first signal during which further signals count as the same request. Slurm without control groups,
for example, signals every process of a job step: a supervised process gets the signal from Slurm and from its
supervisor."""


class Interruption:
    """Handles SIGINT, SIGTERM and SIGHUP inside its `with` block.

    The first signal is recorded. A further signal, one second later or more, ends the process. A signal that the parent
    process ignores stays ignored. No KeyboardInterrupt is raised, because JAX's callbacks would swallow it.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """Number of the first signal received; None before any signal."""
        self._before: dict[int, Any] = {}
        self._ending: threading.Timer | None = None

    def __enter__(self) -> Interruption:
        for number in NUMBERS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._request)
            except ValueError:  # not in the main thread: the caller of the library handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        """Records a signal, and lets signals after ONE_REQUEST_SECONDS end the process."""
        self.signal = number
        for stream in (1, 2):
            try:
                os.write(stream, b"")
            except OSError:  # the terminal is closed: output goes nowhere, so that printing does not fail while saving
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)
        for each in self._before:
            signal.signal(each, lambda *_: None)  # not SIG_IGN, which new child processes would inherit
        self._ending = threading.Timer(ONE_REQUEST_SECONDS, self._end_at_the_next)
        self._ending.daemon = True
        self._ending.start()

    def _end_at_the_next(self) -> None:
        """Lets the next signal end the process at once, even during a long computation."""
        for each in self._before:  # Python's `signal.signal` works only in the main thread, which may be busy
            ctypes.CDLL(None).signal(each, 0)  # SIG_DFL


def hold() -> None:
    """Blocks SIGINT, SIGTERM and SIGHUP, in a process that is about to be replaced by exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def release() -> None:
    """Unblocks SIGINT, SIGTERM and SIGHUP, and delivers pending ones. Call it after handlers are installed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
