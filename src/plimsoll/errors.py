"""Errors that users meet. Each prints as one paragraph: what was requested, the facts with units, what to do.

The exit code belongs to the class, so that the command line decides nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class PlimsollError(Exception):
    """Bad input, or a request that is refused. Nothing was lost; exit code 2."""

    exit_code = 2

    def reply(self) -> dict[str, Any]:
        """Returns the refusal as JSON, which `raise_refusal` raises again in another process."""
        return {"refused": str(self), "exit_code": self.exit_code}


def raise_refusal(reply: Mapping[str, Any], *, prefix: str = "") -> None:
    """Raises the refusal that another process has replied with; does nothing if the reply is no refusal.

    Args:
        reply: JSON of the other process, maybe of `PlimsollError.reply`.
        prefix: Words before its message.
    """
    if "refused" in reply:
        refusal = PlimsollError(prefix + reply["refused"])
        refusal.exit_code = reply["exit_code"]
        raise refusal


@contextmanager
def as_written(what: str) -> Iterator[None]:
    """Raises PlimsollError if the block meets a value of the wrong kind in a file that this program has written.

    Args:
        what: Name of the file, which the message says was altered, damaged, or is of another version.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as problem:
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:160]
        raise PlimsollError(
            f"{what} is not as plimsoll writes it ({reason}): it was altered, damaged, or is of another version. Put a"
            " copy of it back, or leave it out"
        ) from problem


class RecipeError(PlimsollError):
    """A field of the recipe is wrong or contradicts another."""


class DataError(PlimsollError):
    """The data cannot be read, or is not as declared."""


class BudgetError(PlimsollError):
    """No plan fits the budget. `floor_bytes` is the smallest peak of all that were tried.

    `verdict` is "uncertain" where nothing could be compiled, so that one may fit after all.
    """

    verdict = "does not fit"

    def __init__(self, message: str, *, budget_bytes: int, floor_bytes: int | None) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes


class RunError(PlimsollError):
    """The run folder belongs to another recipe, or cannot be continued."""


class CheckpointError(PlimsollError):
    """A checkpoint is truncated, altered, or of another shape."""


class StoppedError(PlimsollError):
    """The run stopped itself with its last good state saved (NaN, full disk); exit code 3."""

    exit_code = 3


class DeviceLostError(StoppedError):
    """The accelerator no longer answers: its process cannot be taken down in order, and is ended at once."""
