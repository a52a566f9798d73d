"""Where messages of planning and training go: a function of one text."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Drops a message."""


def printing(*, quiet: bool) -> Say:
    """Returns the function that prints messages at once, also into a file; nothing if `quiet`."""
    return (lambda text: None) if quiet else (lambda text: print(text, flush=True))
