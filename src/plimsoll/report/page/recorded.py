"""What is known of a run when a page is made of it: its files as they stand, and what was asked of the model besides.

Nothing of it is required but a name: a run may have been killed, may go on, or may never have logged a step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Facts = Mapping[str, Any]

MOST_METRICS = 400
"""Columns that are kept, whatever a user's loss reports."""


@dataclass
class Column:
    """A metric over the rows that have it."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Elapsed, of the whole run."""
    values: array[float] = field(default_factory=lambda: array("d"))

    def finite(self) -> list[float]:
        return [value for value in self.values if math.isfinite(value)]

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


Columns = dict[str, Column]


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """By metric. What is no number is left out; 100,000 rows take 24 bytes a metric and row, not a dictionary each."""
    found: Columns = {}
    for row in rows:
        step, seconds = row["step"], row.get("elapsed_seconds")
        for name, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if name not in found and len(found) >= MOST_METRICS:
                continue
            column = found.setdefault(name, Column())
            column.steps.append(step)
            column.seconds.append(math.nan if seconds is None else seconds)
            column.values.append(value)
    return found


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run."""

    name: str
    path: str
    state: str
    """`finished`, `training now`, `stopped at step 120`, `nothing saved`."""
    recipe: Facts
    """recipe.json"""
    planned: Facts | None = None
    """plan.json"""
    data: Facts | None = None
    ledger: Facts | None = None
    sessions: Sequence[Facts] = ()
    """Of each start: when, with which versions, on what machine."""
    columns: Columns = field(default_factory=dict)
    evaluations: Sequence[Facts] = ()
    """Rows of metrics that an evaluation wrote, the first and the last of them at least."""
    chosen: Facts = field(default_factory=dict)
    """Options of the recipe that are not the preset's."""
    continue_command: str | None = None
    repeat_command: str | None = None
    use_commands: Sequence[str] = ()
    learning_rate: tuple[Sequence[float], Sequence[float]] | None = None
    """Steps, and the rate of each."""
    exhibits: Sequence[Facts] = ()
    """What the recipe makes, as `exhibits.py` draws it."""
    left_out: Sequence[str] = ()
    """What is not on the page, and why: a sentence each."""

    @property
    def budget_bytes(self) -> int | None:
        return (self.ledger or {}).get("budget_bytes") or (self.planned or {}).get("budget_bytes")

    @property
    def predicted_peak_bytes(self) -> int | None:
        return (self.planned or {}).get("predicted_peak_bytes")

    @property
    def on_device(self) -> bool:
        """Whether the line is an accelerator's memory: then its allocator's count is what is held against it."""
        return "device_bytes" in self.columns

    @property
    def measured_peak_bytes(self) -> float | None:
        """The ledger's, of all processes of the run; of one without a ledger yet, the highest that was logged."""
        measured = ((self.ledger or {}).get("measured") or {}).get("peak_bytes")
        if measured is not None:
            return measured
        column = self.columns.get("peak_device_bytes" if self.on_device else "peak_resident_bytes")
        return max(column.finite(), default=None) if column else None

    @property
    def steps(self) -> int | None:
        """Of the whole run, as planned."""
        return (self.data or {}).get("steps")

    @property
    def last_step(self) -> int | None:
        column = self.columns.get("loss")
        return int(column.steps[-1]) if column and column.steps else None

    @property
    def elapsed_seconds(self) -> float | None:
        column = self.columns.get("elapsed_seconds")
        return max(column.finite(), default=None) if column else None

    @property
    def rate_unit(self) -> str | None:
        return next((unit for unit in ("tokens", "examples") if f"{unit}_per_second" in self.columns), None)

    def best(self) -> tuple[int, float] | None:
        """Step and value of the lowest validation loss."""
        column = self.columns.get("validation_loss")
        pairs = zip(column.steps, column.values, strict=True) if column else ()
        finite = [(int(step), value) for step, value in pairs if math.isfinite(value)]
        return min(finite, key=lambda pair: pair[1], default=None)
