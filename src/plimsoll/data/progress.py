"""Lines on standard error for whoever waits for a data set."""

from __future__ import annotations

import sys
import time

from plimsoll.units import format_seconds

LINE_SECONDS = 2.0
"""Least seconds from one line to the next."""


class Spoken:
    """A line every few seconds: words, the share that is done and the time left. What is quick prints nothing."""

    def __init__(self) -> None:
        self._printed = time.monotonic()
        self._first: tuple[float, float] | None = None
        """Time and share of the first call that knew one: what is continued was done in part before."""

    def __call__(self, share: float | None, words: str) -> None:
        now = time.monotonic()
        if self._first is None and share is not None:
            self._first = now, share
        if now - self._printed < LINE_SECONDS:
            return
        self._printed = now

        left = ""
        if share is not None and self._first is not None:
            begin, before = self._first
            left = f"  {share:.0%}"
            if share > before:
                left += f"  left {format_seconds((now - begin) / (share - before) * (1 - share))}"
        print(f"  {words}{left}", file=sys.stderr, flush=True)
