"""Sources of examples: files to documents to tokens to batches, in NumPy, with positions that are JSON."""

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError, RecipeError

STANDARD_LIBRARY = "python:standard-library"
"""The `--dataset-id` of the Python source that every machine with Python has."""
TALES = "plimsoll:tales"
"""The `--dataset-id` of the tales that are made here."""
EMBEDDED = (STANDARD_LIBRARY, TALES)
"""Texts that need no download."""

FOLDER: ContextVar[Path] = ContextVar("folder", default=Path())
"""Folder of the user's code that runs: a file with a relative path is looked for there first."""


def require_sizes(*, least: int = 1, **sizes: int | None) -> None:
    """Raises RecipeError where an option is below `least`; the names are those of the options, None is left out."""
    for name, value in sizes.items():
        if value is not None and value < least:
            raise RecipeError(f"--{name.replace('_', '-')} must be {least} or more, got {value}")


def model_rows(vocab_size: int | None, tokens: int, *, name: str) -> int:
    """Returns the rows of a model's embedding: as many as the ids, or --vocab-size, which has to be that many.

    Args:
        vocab_size: The option.
        tokens: Ids of the data.
        name: What has them, for the message.

    Raises:
        RecipeError: Some ids would have no row.
    """
    if vocab_size is not None and vocab_size < tokens:
        raise RecipeError(
            f"{name} has a vocabulary of {tokens:,}, but --vocab-size {vocab_size:,} gives the model only"
            f" {vocab_size:,} rows: leave --vocab-size out, or make it at least {tokens:,}"
        )
    return vocab_size or tokens


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_short(problem: Exception, *, kind: bool = False) -> str:
    """Returns the beginning of an error's text on one line, after its class where that says more (`kind`)."""
    text = " ".join((f"{type(problem).__name__}: {problem}" if kind else str(problem)).split())
    return text if len(text) <= 200 else text[:200] + "..."


def read_json(path: Path, *, absent: str, again: str) -> Any:
    """Returns what a JSON file of a data set holds.

    Args:
        absent: The message of the DataError where there is no such file.
        again: What to do about a file that cannot be read; it follows the reason.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(absent) from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read as JSON ({in_short(problem)}). {again}") from None
