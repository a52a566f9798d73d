"""Progress lines on standard error while a data set is prepared."""

from __future__ import annotations

import sys
import time

from plimsoll.units import format_seconds

LINE_SECONDS = 2.0
"""Minimum seconds between two lines."""


class Spoken:
    """Prints a line at most every 2 s: words, the completed share and the time left. Quick work prints nothing."""

    def __init__(self) -> None:
        self._printed = time.monotonic()
        self._first: tuple[float, float] | None = None
        """Time and completed share at the first call with a share. The share is above 0 if earlier work continues."""

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
