"""What goes wrong in a user's code is told by its own lines: not by ours, not by those of libraries."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from plimsoll.errors import PlimsollError, RecipeError

_LONGEST = 600
"""Characters of a library's message that are shown: JAX explains itself over pages."""


@contextlib.contextmanager
def told_by_its_lines(what: str, folder: Path) -> Iterator[None]:
    """Raises RecipeError that `what` failed, with the lines below `folder` that led there.

    What the code prints goes to standard error: standard output may be one JSON object.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except PlimsollError:
        raise
    except (Exception, SystemExit) as problem:
        raise RecipeError(_told(what, folder, problem)) from problem


def is_users(path: Path, folder: Path) -> bool:
    """Below `folder`, and not of an environment that lies there."""
    return path.is_relative_to(folder) and not {"site-packages", "dist-packages"} & set(path.parts)


def _told(what: str, folder: Path, problem: BaseException) -> str:
    message = " ".join(str(problem).split())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + " ..."
    lines = [f"{what}: {type(problem).__name__}{': ' * bool(message)}{message}"]
    for frame in traceback.extract_tb(problem.__traceback__):
        path = Path(frame.filename)
        if is_users(path, folder):
            place = "" if frame.name == "<module>" else f", in {frame.name}"
            lines.append(f"  {path.relative_to(folder)}, line {frame.lineno}{place}: `{frame.line}`")
    return "\n".join(lines)
