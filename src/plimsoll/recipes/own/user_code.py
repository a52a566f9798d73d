"""User code: checks of a loss's arguments, and errors that show only lines of the user's own files."""

import contextlib
import inspect
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from plimsoll.data import FOLDER
from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.types import STATE

MAY_TAKE = ("keys", "train", "compute", STATE)
"""Names of arguments that a user's loss may take besides parameters and batch."""
_LONGEST = 600
"""Most characters shown of an exception's message: messages of JAX may take pages."""
_CALLS = 8
"""Number of innermost calls in the user's code that an error shows."""

_PACKAGE = Path(__file__).absolute().parents[2]
_PYTHON = Path(sysconfig.get_path("stdlib"))


@contextlib.contextmanager
def as_recipe_error(what: str, folder: Path) -> Iterator[None]:
    """Turns exceptions of user code in `folder` into RecipeError, with `what`, the error, and the lines of user code.

    Output of the code goes to standard error: standard output may be one JSON object.
    """
    before = FOLDER.set(folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except PlimsollError:
        raise
    except (Exception, SystemExit) as problem:
        raise failed(folder, what, problem) from problem
    finally:
        FOLDER.reset(before)


def failed(folder: Path, what: str, problem: BaseException) -> RecipeError:
    """Returns a RecipeError that begins with `what` and shows the user's own lines that led to the problem."""
    message = textwrap.shorten(str(problem), _LONGEST, placeholder=" ...")
    lines = [f"{what}: {type(problem).__name__}{': ' * bool(message)}{message}"]
    return RecipeError("\n".join([*lines, *calls_of(problem, folder)[-_CALLS:]]))


def calls_of(problem: BaseException, folder: Path) -> list[str]:
    """Returns the user's own lines that led to an error, the innermost call at the end."""
    calls = []
    for frame in traceback.extract_tb(problem.__traceback__):
        file = _users_file(frame.filename, folder)
        if file:
            place = "" if frame.name == "<module>" else f", in {frame.name}"
            line = f": `{frame.line}`" if frame.line else ""  # another process does not have the lines of a cell
            calls.append(f"  {file}, line {frame.lineno}{place}{line}")
    return calls


def _users_file(name: str, folder: Path) -> str:
    """Returns a name to show for a file of the user's code; empty if the file is not the user's."""
    path = Path(name)
    if is_users(path, folder):
        return str(path.relative_to(folder))
    if path.parent.name.startswith("ipykernel_"):
        return "a cell"
    if name == "<stdin>":
        return "standard input"
    return name if path.is_file() and not is_library(path) else ""


def is_users(path: Path, folder: Path) -> bool:
    """Returns True if a path is below `folder`, but not in a library there."""
    return path.is_relative_to(folder) and not is_library(path)


def is_library(path: Path) -> bool:
    """Returns True if a path is in site-packages, in Python's standard library, or in this package."""
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return is_installed or path.is_relative_to(_PACKAGE) or path.is_relative_to(_PYTHON)


def file_of(module: ModuleType | None) -> Path | None:
    """Returns the file of a module of the user's; None for a notebook or a prompt.

    In a process that plimsoll starts, `__main__` is a module of plimsoll: a user's `__main__` has no file there.
    """
    path = Path(getattr(module, "__file__", None) or "").absolute()
    is_theirs = path.is_file() and not path.is_relative_to(_PACKAGE)
    return path if is_theirs else None


def taken(loss: Any, *, called: str) -> set[str]:
    """Returns the arguments among MAY_TAKE that a loss takes. Raises RecipeError if it requires others."""
    parameters = inspect.signature(loss).parameters
    named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = {p.name for p in named[2:] if p.default is p.empty or p.name in MAY_TAKE}
    if len(named) < 2 or not takes <= {*MAY_TAKE}:
        raise RecipeError(
            f"the loss of {called} is loss({', '.join(parameters)}): it takes the parameters and the batch, and may"
            f" take {', '.join(MAY_TAKE)} by these names"
        )
    return takes
