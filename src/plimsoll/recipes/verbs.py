"""Records of the functions behind commands on a trained model, and behind parts of a report that the model makes.

Functions are named like entry points, "module:function", and imported when they are called. So the command line
knows what a recipe supports without importing JAX, and a recipe does not import the code that imports it.
"""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Verb:
    """Functions behind one command (`evaluate`, `sample`, `solve`, `rank`, `export`) for runs of a recipe."""

    answer: str = ""
    """`function(trained, request) -> dict`: the command's answer, in a process that imports JAX. `trained` is a
    `types.TrainedRun`, and `request` holds the command's options. Without it `evaluate` returns mean metrics."""
    ask: str = ""
    """`function(recipe, run, text) -> dict`: fields of the request, from text of the user (a puzzle, a history). It
    runs in the command's process without JAX, so that bad input is refused at once."""
    options: tuple[str, ...] = ()
    """Options of the command that only some recipes support, like "closed_loop" of `evaluate`."""
    text: str = ""
    """`function(answer) -> str`: the text that the command prints without --json."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Part of a report that the trained model makes."""

    words: str
    """Name of this part of the report, as in "`what it writes` is missing because ..."."""
    make: str
    """`function(trained) -> list[dict]`: tables, texts and plots, as `report/page/run.py` draws them."""
    command: str = ""
    """Command that the report recommends, with {run} for the run's folder; empty for none."""
    takes_minutes: bool = False
    """True if making it takes minutes: only `plimsoll report --closed-loop` does so."""


def resolved(reference: str) -> Any:
    """Returns the object that a reference like "module:name" names. References come from code, never from data."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
