"""Errors that users meet. Each prints as one paragraph: what was requested, the facts with units, what to do.

The exit code belongs to the class, so that the command line decides nothing.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

Shown = TypeVar("Shown", bound=BaseException)


class PlimsollError(Exception):
    """Bad input, or a request that is refused. Base class of all errors of plimsoll; exit code 2.

    Nothing is lost when it is raised. The message is one paragraph: the request, the facts with units, what to do.

    Example:
        >>> try:
        ...     plimsoll.preset("cod")
        ... except plimsoll.PlimsollError as problem:
        ...     print(str(problem)[:53])
        there is no recipe called 'cod': did you mean code or
    """

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython and notebooks print: the paragraph, without a traceback of our insides."""
        return [f"{type(self).__name__}: {self}"]

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


def as_paragraph(problem: Shown) -> Shown:
    """Returns an exception of Python's own class, of which IPython then prints the message alone."""
    problem._render_traceback_ = lambda: [f"{type(problem).__name__}: {problem}"]  # type: ignore[attr-defined]
    return problem


def unknown_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Returns an AttributeError that suggests a known name, or lists all of them.

    Args:
        owner: What has no such attribute, like "a run".
        name: The attribute.
        known: Attributes that it has.
    """
    known = [each for each in known if not each.startswith("_")]
    hint = did_you_mean(name, known) or f"; it has {', '.join(known)}"
    return as_paragraph(AttributeError(f"{owner} has no {name!r}{hint}"))


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, like: float = 0.6) -> str:
    """Returns `: did you mean steps?`; empty where no known name is like it.

    Args:
        name: The name that is not known.
        known: Names that are.
        most: Names to suggest, at most.
        like: Similarity of a name that is suggested, from 0 to 1 (`difflib`).
    """
    near = difflib.get_close_matches(name, [*dict.fromkeys(known)], n=most, cutoff=like)
    return f": did you mean {' or '.join(near)}?" if near else ""


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
    """An option is unknown, has a wrong value, or contradicts another.

    Example:
        >>> plimsoll.preset("code", batch_size=0)
        Traceback (most recent call last):
        ...
        plimsoll.errors.RecipeError: --batch-size must be 1 or more, got 0
    """


class DataError(PlimsollError):
    """Data cannot be read, or is not as declared.

    Example:
        >>> plimsoll.loader(plimsoll.preset("stories", dataset_id="missing.txt", steps=1))  # doctest: +SKIP
    """


class BudgetError(PlimsollError):
    """No plan fits the budget.

    Attributes:
        budget_bytes: The budget.
        floor_bytes: The smallest budget that a plan fits in; None if nothing compiled.

    Example:
        >>> try:
        ...     plimsoll.plan("code", memory="100MiB")  # doctest: +SKIP
        ... except plimsoll.BudgetError as problem:
        ...     print(problem.floor_bytes)
    """

    verdict = "does not fit"
    """Whether a plan may fit after all: "uncertain" if bytes were only estimated."""

    def __init__(self, message: str, *, budget_bytes: int, floor_bytes: int | None) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes


class RunError(PlimsollError):
    """A run does not exist, belongs to another recipe, or cannot be continued.

    Example:
        >>> plimsoll.load("runs/none-of-that-name")
        Traceback (most recent call last):
        ...
        plimsoll.errors.RunError: ...
    """


class CheckpointError(PlimsollError):
    """A checkpoint does not exist, or is truncated, altered, or of another shape.

    Example:
        >>> plimsoll.load("runs/code").params(step=7)  # doctest: +SKIP
    """


class StoppedError(PlimsollError):
    """Training stopped itself, because of NaN or a full disk, with its last good state saved; exit code 3.

    Example:
        >>> plimsoll.StoppedError("the loss is NaN").exit_code
        3
    """

    exit_code = 3


class DeviceLostError(StoppedError):
    """The accelerator no longer answers: its process cannot be taken down in order, and is ended at once."""
