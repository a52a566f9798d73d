"""Data of a run that its page is made from: its files, and examples of what its model makes.

Only a few fields are required: a run may have been killed, may still train, or may never have logged a step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Facts = Mapping[str, Any]

MOST_METRICS = 400
"""Number of columns that are kept, however many a user's loss reports."""


@dataclass
class Column:
    """Values of a metric, in the rows that have it: at least one."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since the start of the whole run."""
    values: array[float] = field(default_factory=lambda: array("d"))

    def finite(self) -> list[float]:
        """Returns the values without NaN and infinities."""
        return [value for value in self.values if math.isfinite(value)]


Columns = dict[str, Column]


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Returns the rows as a column per metric, with 24 bytes a value. Values that are not numbers are left out."""
    columns: Columns = {}
    for row in rows:
        step, seconds = row["step"], row.get("elapsed_seconds")
        for name, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if name not in columns and len(columns) >= MOST_METRICS:
                continue
            column = columns.setdefault(name, Column())
            column.steps.append(step)
            column.seconds.append(math.nan if seconds is None else seconds)
            column.values.append(value)
    return columns


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Data of a run. Paths and states are as text; the rest is the content of its JSON files."""

    name: str
    path: str
    state: str
    """One of `finished`, `training now`, `stopped at step 120`, `nothing saved`."""
    recipe: Facts
    """Content of recipe.json."""
    planned: Facts = field(default_factory=dict)
    """Content of plan.json; this, `data` and `ledger` are empty as long as there is no such file."""
    data: Facts = field(default_factory=dict)
    ledger: Facts = field(default_factory=dict)
    sessions: Sequence[Facts] = ()
    """Time, versions and machine of each start."""
    processes: Facts = field(default_factory=dict)
    """Content of processes.json; empty for a run of one process."""
    columns: Columns = field(default_factory=dict)
    chosen: Facts = field(default_factory=dict)
    """Options of the recipe that differ from the preset's."""
    continue_command: str | None = None
    repeat_command: str | None = None
    use_commands: Sequence[str] = ()
    learning_rate: tuple[Sequence[float], Sequence[float]] | None = None
    """Steps, and the learning rate of each."""
    exhibits: Sequence[Facts] = ()
    """Examples of what the model makes, as `exhibits.py` draws them."""
    left_out: Sequence[str] = ()
    """Sentences about what is missing on the page, and why."""

    @property
    def recipe_name(self) -> str:
        """Name of the recipe in its plan, else its kind."""
        return self.planned.get("recipe") or self.recipe["kind"]

    @property
    def budget_bytes(self) -> int | None:
        """Budget of one device, or of the process on a CPU."""
        return self.ledger.get("budget_bytes") or self.planned.get("budget_bytes")

    @property
    def on_device(self) -> bool:
        """True where the budget is an accelerator's memory, so that its allocator's count is compared with it."""
        return "device_bytes" in self.columns

    @property
    def measured_peak_bytes(self) -> float | None:
        """Peak of all processes of the run, from its ledger; before there is one, the highest that was logged."""
        measured = (self.ledger.get("measured") or {}).get("peak_bytes")
        if measured is not None:
            return measured
        return self._highest("peak_device_bytes" if self.on_device else "peak_resident_bytes")

    @property
    def last_step(self) -> int | None:
        """Last step whose loss was logged."""
        column = self.columns.get("loss")
        return int(column.steps[-1]) if column else None

    @property
    def elapsed_seconds(self) -> float | None:
        """Training time of the whole run so far."""
        return self._highest("elapsed_seconds")

    def _highest(self, name: str) -> float | None:
        column = self.columns.get(name)
        return max(column.finite(), default=None) if column else None

    @property
    def rate_unit(self) -> str | None:
        """Unit of the throughput: `tokens` or `examples`; None before one was logged."""
        return next((unit for unit in ("tokens", "examples") if f"{unit}_per_second" in self.columns), None)

    def best(self) -> tuple[int, float] | None:
        """Returns step and value of the lowest validation loss."""
        column = self.columns.get("validation_loss")
        pairs = zip(column.steps, column.values, strict=True) if column else ()
        finite = [(int(step), value) for step, value in pairs if math.isfinite(value)]
        return min(finite, key=lambda pair: pair[1], default=None)
