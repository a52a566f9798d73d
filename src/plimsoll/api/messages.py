"""Functions that receive the messages of planning and training."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Drops a message."""


def printing(*, quiet: bool) -> Say:
    """Returns a function that prints each message without buffering, or drops it if `quiet`."""
    return (lambda text: None) if quiet else (lambda text: print(text, flush=True))
