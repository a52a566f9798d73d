"""Errors in a user's code, told by its own lines: not by ours, not by those of libraries."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from plimsoll.errors import PlimsollError, RecipeError

_LONGEST = 600
"""Characters of a library's message that are shown: JAX explains itself over pages."""
_FIRST, _LAST = 3, 5
"""First and last of the user's own calls; those between them, mostly a recursion, are counted."""


@contextlib.contextmanager
def as_recipe_error(what: str, folder: Path) -> Iterator[None]:
    """Raises RecipeError that `what` failed, with the lines below `folder` that led there.

    What the code prints goes to standard error: standard output may be one JSON object.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except PlimsollError:
        raise
    except (Exception, SystemExit) as problem:
        raise failed(what, folder, problem) from problem


def failed(what: str, folder: Path, problem: BaseException) -> RecipeError:
    """Returns the refusal that `what` failed, with the lines below `folder` that led there."""
    message = " ".join(str(problem).split())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + " ..."
    lines = [f"{what}: {type(problem).__name__}{': ' * bool(message)}{message}"]
    calls = []
    for frame in traceback.extract_tb(problem.__traceback__):
        path = Path(frame.filename)
        if is_users(path, folder):
            place = "" if frame.name == "<module>" else f", in {frame.name}"
            calls.append(f"  {path.relative_to(folder)}, line {frame.lineno}{place}: `{frame.line}`")
    between = len(calls) - _FIRST - _LAST
    if between > 1:
        calls[_FIRST:-_LAST] = [f"  ... {between} calls between these"]
    return RecipeError("\n".join([*lines, *calls]))


def is_users(path: Path, folder: Path) -> bool:
    """Returns whether a path is below `folder`, and not of an environment there."""
    return path.is_relative_to(folder) and not {"site-packages", "dist-packages"} & set(path.parts)
