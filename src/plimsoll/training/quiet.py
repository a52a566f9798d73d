"""Keeps Orbax and TensorStore from printing tracebacks of a write that fails: what failed is raised, and said once.

On a full disk they log every thread's traceback, and their callbacks meet an event loop that is closed by then, which
the interpreter reports through `sys.unraisablehook`, hundreds of times over.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

LOGGERS = ("absl", "asyncio")


def hush() -> None:
    """From the first save or load on, for the rest of the process. May be called again."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)


class _WithoutClosedLoops:
    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, met: Any) -> None:
        if isinstance(met.exc_value, RuntimeError) and str(met.exc_value) == "Event loop is closed":
            return
        self._before(met)
