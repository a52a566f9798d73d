"""A line on standard error now and then, for whoever waits for a data set."""

from __future__ import annotations

import sys
import time

from plimsoll.units import format_seconds


class Spoken:
    """Says how many are done, and how long the rest will take; silent for what takes less than `every` seconds."""

    def __init__(self, what: str, *, every: float = 2.0) -> None:
        self._what, self._every = what, every
        self._started = self._said = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._said < self._every:
            return
        self._said = now
        left = format_seconds((now - self._started) / max(done, 1) * (of - done))
        print(f"  {done:,} of {of:,} {self._what}  left {left}", file=sys.stderr, flush=True)


class Left:
    """Says what is done in words, and how long the rest will take where its share is known."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def __call__(self, share: float | None, words: str) -> None:
        left = ""
        if share is not None:
            now = time.monotonic()
            self._first = self._first or (now, share)
            left = f"  {share:.0%}"
            if (done := share - self._first[1]) > 0:
                left += f"  left {format_seconds((now - self._first[0]) / done * (1 - share))}"
        print(f"  {words}{left}", file=sys.stderr, flush=True)
