"""Training data: from files to documents, tokens and NumPy batches. A position in the data is JSON."""

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError, RecipeError

STANDARD_LIBRARY = "python:standard-library"
"""The `--dataset-id` of the source code of Python's standard library."""
TALES = "plimsoll:tales"
"""The `--dataset-id` of the generated tales (text/tales.py)."""
EMBEDDED = (STANDARD_LIBRARY, TALES)
"""Values of `--dataset-id` that need no download."""

FOLDER: ContextVar[Path] = ContextVar("folder", default=Path())
"""Folder of the user's Python file that is running. Relative paths of data files are looked up there first."""


def require_sizes(*, least: int = 1, **sizes: int | None) -> None:
    """Raises RecipeError if an option is below `least`. `sizes` maps options to values; None passes the check."""
    for name, value in sizes.items():
        if value is not None and value < least:
            raise RecipeError(f"--{name.replace('_', '-')} must be {least} or more, got {value}")


def model_rows(vocab_size: int | None, tokens: int, *, name: str) -> int:
    """Returns the number of rows of a model's embedding: --vocab-size, or by default `tokens`.

    Args:
        vocab_size: Value of --vocab-size.
        tokens: Size of the vocabulary of the data or tokenizer.
        name: Name of the data or tokenizer, for the message.

    Raises:
        RecipeError: `vocab_size` is smaller than `tokens`.
    """
    if vocab_size is not None and vocab_size < tokens:
        raise RecipeError(
            f"{name} has a vocabulary of {tokens:,}, but --vocab-size {vocab_size:,} gives the model only"
            f" {vocab_size:,} rows: leave --vocab-size out, or make it at least {tokens:,}"
        )
    return vocab_size or tokens


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_short(problem: Exception, *, kind: bool = False) -> str:
    """Returns the first 200 characters of an error's text on one line. `kind` adds the error's class in front."""
    text = " ".join((f"{type(problem).__name__}: {problem}" if kind else str(problem)).split())
    return text if len(text) <= 200 else text[:200] + "..."


def read_json(path: Path, *, absent: str, again: str) -> Any:
    """Returns the content of a JSON file of a data set. Raises DataError if it cannot be read.

    Args:
        absent: Message if there is no such file.
        again: Advice at the end of the message if the file is unreadable.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(absent) from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read as JSON ({in_short(problem)}). {again}") from None
