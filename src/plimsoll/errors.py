"""The refusals users meet. Each prints as one paragraph: what was asked, the facts with units, what to do.

The exit code belongs to the class, so that the command line decides nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PlimsollError(Exception):
    """Bad input, or a request that is refused. Nothing was lost; exit code 2."""

    exit_code = 2


@contextmanager
def as_written(what: str) -> Iterator[None]:
    """Around what reads files that this program wrote: where they were altered since, that is said, and not met as
    whatever is missing or of another kind then raises."""
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
    """The data cannot be read, or is not what was said."""


class BudgetError(PlimsollError):
    """No plan fits the budget. `floor_bytes` is the smallest peak that was found."""

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
