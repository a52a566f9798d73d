"""Errors for users. Each message is one paragraph: what was requested, the facts with units, what to do.

Each class has its exit code for the command line.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

Shown = TypeVar("Shown", bound=BaseException)
LISTED = 8
"""Largest number of names that a message lists."""


class PlimsollError(Exception):
    """Base class of all errors that plimsoll raises: bad input, or a request that cannot be fulfilled.

    The message is one paragraph: what was requested, the facts with units, and what to do. Saved checkpoints stay
    intact. The command line prints the message and exits with code 2.

    Example:
        >>> try:
        ...     plimsoll.preset("cod")
        ... except plimsoll.PlimsollError as problem:
        ...     print(str(problem)[:53])
        there is no recipe called 'cod': did you mean code or
    """

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython and notebooks print: the message without a traceback."""
        return [f"{type(self).__name__}: {self}"]

    def reply(self) -> dict[str, Any]:
        """Returns this error as a JSON-serialisable dict, for another process, where `errors.raise_refusal` raises it.

        Returns:
            The message as "refused", the exit code and the name of the class, like {"refused": "...", "exit_code": 2,
            "kind": "RunError"}.
        """
        return {"refused": str(self), "exit_code": self.exit_code, "kind": type(self).__name__}


def raise_refusal(reply: Mapping[str, Any], *, prefix: str = "") -> None:
    """Raises the error in another process's reply; does nothing if the reply is not an error.

    RecipeError, DataError, RunError, CheckpointError and StoppedError keep their class. Other errors become
    PlimsollErrors.

    Args:
        reply: Reply of the other process: a dict, from `PlimsollError.reply` if it is an error.
        prefix: Text to put before the error's message.
    """
    if "refused" in reply:
        kinds = {each.__name__: each for each in (RecipeError, DataError, RunError, CheckpointError, StoppedError)}
        refusal = kinds.get(reply.get("kind", ""), PlimsollError)(prefix + reply["refused"])
        refusal.exit_code = reply["exit_code"]
        raise refusal


def ended_by_disk(problem: OSError) -> str:
    """Returns the message for training that an OSError ended, for example because the disk is full."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"training stopped: the disk is full ({problem}). Make room, and run the same command again to continue"
    return f"training stopped: {problem}. Run the same command again to continue"


def ended_by_memory(problem: BaseException) -> str:
    """Returns the message for training that ended because its process got no more memory."""
    return (
        f"training stopped: this process gets no more memory ({problem or 'MemoryError'}). What was saved is"
        " whole: run the same command again once more memory is free, or with --replan and a smaller --memory"
    )


def ended_by_kill() -> str:
    """Returns the message of the parent process if its training process was killed."""
    return (
        "the process that trained was killed (SIGKILL): by the system for lack of memory (`dmesg` says so), by a"
        " scheduler at its limit, or by hand. What was saved is whole: run the same command again, with --replan"
        " and a smaller --memory if other programs need more"
    )


def as_paragraph(problem: Shown) -> Shown:
    """Returns `problem`, changed so that IPython prints only its message, without a traceback."""
    problem._render_traceback_ = lambda: [f"{type(problem).__name__}: {problem}"]  # type: ignore[attr-defined]
    return problem


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, like: float = 0.6) -> str:
    """Returns text like `: did you mean steps?`; empty if no known name is similar.

    Args:
        name: The unknown name.
        known: All known names.
        most: Largest number of names to suggest.
        like: Least similarity of a suggested name, from 0 to 1 (`difflib`).
    """
    import difflib  # imported here, because help does not need it

    near = difflib.get_close_matches(name, [*dict.fromkeys(known)], n=most, cutoff=like)
    return f": did you mean {' or '.join(near)}?" if near else ""


def names_in_words(names: Iterable[str], *, all_of_them: str = "") -> str:
    """Returns at most eight names for a message, like `code, maze and 25 more (`plimsoll recipes`)`.

    Args:
        names: All names.
        all_of_them: Command or page that lists all names, for the text if some are left out.
    """
    names = [*names]
    if len(names) <= LISTED:
        return ", ".join(names)
    where = f" ({all_of_them})" if all_of_them else ""
    return f"{', '.join(names[: LISTED - 1])} and {len(names) - LISTED + 1} more{where}"


@contextmanager
def as_written(what: str) -> Iterator[None]:
    """Context manager that raises PlimsollError for a wrong value in a file that plimsoll has written.

    Args:
        what: Name of the file, for the message.
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
    """Error raised if an option is unknown, has a wrong value, or contradicts another.

    Example:
        >>> plimsoll.preset("code", batch_size=0)
        Traceback (most recent call last):
        ...
        plimsoll.errors.RecipeError: --batch-size must be 1 or more, got 0
    """


class DataError(PlimsollError):
    """Error raised if data cannot be read, is damaged, or is not what the recipe or the run expects.

    Example:
        >>> plimsoll.loader(plimsoll.preset("stories", dataset_id="missing.txt", steps=1))  # doctest: +SKIP
    """


class BudgetError(PlimsollError):
    """Error raised if no plan fits the memory budget.

    Attributes:
        budget_bytes: The memory budget, in bytes per device.
        floor_bytes: The smallest budget that a plan fits in, in bytes; None if no plan compiled.

    Example:
        >>> try:
        ...     plimsoll.plan("code", memory="100MiB")  # doctest: +SKIP
        ... except plimsoll.BudgetError as problem:
        ...     print(problem.floor_bytes)
    """

    verdict = "does not fit"
    """Whether a plan fits: "does not fit", or "uncertain" if memory was only estimated and a plan may fit after all."""

    def __init__(self, message: str, *, budget_bytes: int, floor_bytes: int | None) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes


class RunError(PlimsollError):
    """Error raised if a run does not exist, belongs to another recipe, or cannot be continued.

    Example:
        >>> plimsoll.load("runs/none-of-that-name")
        Traceback (most recent call last):
        ...
        plimsoll.errors.RunError: ...
    """


class CheckpointError(PlimsollError):
    """Error raised if a checkpoint does not exist, is truncated or altered, or has arrays of other shapes.

    Example:
        >>> plimsoll.load("runs/code").params(step=7)  # doctest: +SKIP
    """


class StoppedError(PlimsollError):
    """Error raised if training stopped itself, for example because the loss became NaN or the disk is full.

    The last good checkpoint is kept: a state with NaN is not saved. The command line exits with code 3.

    Example:
        >>> plimsoll.StoppedError("the loss is NaN").exit_code
        3
    """

    exit_code = 3


class DeviceLostError(StoppedError):
    """Error raised if the accelerator no longer answers. The process that uses it is killed, without clean-up."""
