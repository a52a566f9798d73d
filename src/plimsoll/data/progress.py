"""Lines on standard error for whoever waits for a data set."""

from __future__ import annotations

import sys
import time

from plimsoll.units import format_seconds

LINE_SECONDS = 2.0
"""Least seconds from one line of `Spoken` to the next."""


class Spoken:
    """A line every few seconds: how many are done, how fast, and the time left. What is quick prints nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: tuple[float, int] | None = None
        """Time and count of the first call: what was continued had some done before."""

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._printed = (now, done), now
        if now - self._printed < LINE_SECONDS:
            return
        self._printed = now
        rate = (done - self._first[1]) / (now - self._first[0])
        left = f"  left {format_seconds((of - done) / rate)}" if rate else ""
        print(f"  {done:,} of {of:,} {self._what}  {rate:,.0f}/s{left}", file=sys.stderr, flush=True)


class Left:
    """A line of words for every call, and the time left where the share that is done is known."""

    _first: tuple[float, float] | None = None
    """Time and share of the first call that knew one."""

    def __call__(self, share: float | None, words: str) -> None:
        left = ""
        if share is not None:
            now = time.monotonic()
            self._first = self._first or (now, share)
            left = f"  {share:.0%}"
            if (done := share - self._first[1]) > 0:
                left += f"  left {format_seconds((now - self._first[0]) / done * (1 - share))}"
        print(f"  {words}{left}", file=sys.stderr, flush=True)
