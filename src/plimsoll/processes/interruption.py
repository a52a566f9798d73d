"""SIGINT, SIGTERM and SIGHUP as a request to save and stop. Imports nothing heavy: it works before JAX is imported."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes where the terminal is closed, or its connection is lost."""
ONE_REQUEST_SECONDS = 1.0
"""Seconds after a signal in which others belong to the same request. Slurm without control groups, for one, signals
every process of a step: a process that is supervised gets the signal from Slurm, and from its supervisor."""


class Interruption:
    """Handler of these signals inside its `with` block. The first signal is noted; one that comes a second later, or
    after that, ends the process.

    A signal that our parent ignores stays ignored. No KeyboardInterrupt is raised: JAX's callbacks swallow it.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """Number of the signal that was received."""
        self._before: dict[int, Any] = {}
        self._ending: threading.Timer | None = None

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
        if self._ending is not None:
            self._ending.cancel()
            self._ending.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        for stream in (1, 2):
            try:
                os.write(stream, b"")
            except OSError:  # the terminal is gone: what cannot be printed must not end what saves
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)
        for each in self._before:
            signal.signal(each, lambda *_: None)  # not ignored: a program that is started now would inherit that
        self._ending = threading.Timer(ONE_REQUEST_SECONDS, self._end_at_the_next)
        self._ending.daemon = True
        self._ending.start()

    def _end_at_the_next(self) -> None:
        """Lets the next signal end the process at once, whatever it computes then."""
        for each in self._before:  # Python's own function is for the main thread alone, which may be busy for minutes
            ctypes.CDLL(None).signal(each, 0)  # SIG_DFL


def hold() -> None:
    """Blocks these signals, in a process that is about to become another by exec."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def release() -> None:
    """Unblocks these signals and delivers those that wait. Call it once the handlers are installed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
