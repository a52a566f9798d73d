"""Data for the HTML page of a training run: contents of the run's files, and examples of the model's output.

Few fields are required, because the run may have been killed, may still be training, or may have logged no step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from plimsoll.planned import Planned, RunLedger
from plimsoll.report.picture import Line

Facts = Mapping[str, Any]


@dataclass
class Column:
    """Logged values of one metric."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    """Optimizer step of each value."""
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Training seconds since the start of the run, at each value."""
    values: array[float] = field(default_factory=lambda: array("d"))

    @property
    def finite(self) -> list[float]:
        """Finite values of the metric."""
        return [value for value in self.values if math.isfinite(value)]

    def line(self, name: str, *, second: float = 0, unit: float = 1, is_marked: bool = False) -> Line:
        """Returns the values as a curve.

        Args:
            name: Name of the curve.
            second: Seconds in a unit of the horizontal axis; 0 for an axis of optimizer steps.
            unit: Number that the values are divided by.
            is_marked: True if every point has a dot.
        """
        xs = [at / second for at in self.seconds] if second else self.steps
        return Line(name=name, xs=xs, ys=[value / unit for value in self.values], is_marked=is_marked)


def columns_of(rows: Iterable[Facts]) -> dict[str, Column]:
    """Converts rows of metrics to columns, which take 24 bytes per value. Leaves out values that are not numbers."""
    columns: dict[str, Column] = {}
    for row in rows:
        for name, value in row.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            column = columns.setdefault(name, Column())
            column.steps.append(row["step"])
            column.seconds.append(row.get("elapsed_seconds", math.nan))
            column.values.append(value)
    return columns


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Data of a training run for its HTML page."""

    name: str
    path: str
    state: str
    """State of the run, like `finished`, `training now`, `stopped at step 120` or `nothing saved`."""
    recipe: Facts
    """Content of recipe.json."""
    planned: Planned | None = None
    ledger: RunLedger | None = None
    """Predicted and measured bytes; None before the run has a plan."""
    steps: int | None = None
    """Planned optimizer steps of the run; None before its training data are prepared."""
    data: str = ""
    """Description of the training data."""
    sessions: Sequence[Facts] = ()
    """Start time, package versions and machine of each training session."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Map from a metric's name to its logged values."""
    chosen: Facts = field(default_factory=dict)
    """Options of the recipe that differ from the preset."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Map from the label of a command, like `Continues it`, to the command."""
    learning_rate: tuple[Sequence[float], Sequence[float]] | None = None
    """Steps, and the learning rate at each of these steps."""
    exhibits: Sequence[Facts] = ()
    """Examples of the model's output: texts, grids, curves or tables, in the format of `Uses.exhibits`."""
    left_out: Sequence[str] = ()
    """Sentences about parts that the page lacks, with the reasons."""

    def column(self, name: str) -> Column:
        """Returns the logged values of a metric; an empty column if it was never logged."""
        return self.columns.get(name) or Column()

    @property
    def recipe_name(self) -> str:
        """Name of the recipe; its kind, like `longcontext`, if the run has no plan."""
        return self.planned.recipe if self.planned else self.recipe["kind"]

    @property
    def budget_bytes(self) -> int | None:
        """Memory budget of one accelerator, or of the process on a CPU."""
        return self.ledger and self.ledger.budget_bytes

    @property
    def memory_kind(self) -> str:
        """Kind of memory that the budget limits: `device` on an accelerator, `resident` on a CPU."""
        return "device" if "device_bytes" in self.columns else "resident"

    @property
    def measured_peak_bytes(self) -> float | None:
        """Highest memory use of all training sessions, in bytes: from the ledger, else from logged metrics."""
        measured = self.ledger and self.ledger.measured_bytes
        return measured or max(self.column(f"peak_{self.memory_kind}_bytes").finite, default=None)

    @property
    def last_step(self) -> int:
        """Highest step with a logged loss."""
        return int(max(self.column("loss").steps, default=0))

    @property
    def elapsed_seconds(self) -> float:
        """Training seconds of all sessions of the run so far."""
        return max(self.column("elapsed_seconds").finite, default=0.0)

    @property
    def rate_unit(self) -> str:
        """Unit of the throughput: `tokens` or `examples`."""
        return "tokens" if "tokens_per_second" in self.columns else "examples"

    @property
    def loss_unit(self) -> str:
        return "loss, nats" if self.rate_unit == "tokens" else "loss"

    @property
    def median_rate(self) -> float | None:
        """Median of the logged throughput, in tokens or examples per second; None without a logged value."""
        rates = self.column(f"{self.rate_unit}_per_second").finite
        return median(rates) if rates else None

    def best(self) -> tuple[int, float] | None:
        """Returns step and value of the lowest validation loss; None without an evaluation."""
        column = self.column("validation_loss")
        pairs = zip(column.values, column.steps, strict=True)
        lowest, step = min((pair for pair in pairs if math.isfinite(pair[0])), default=(0.0, 0.0))
        return (int(step), lowest) if step else None


def time_axis(seconds: float) -> tuple[float, str]:
    """Returns the unit of a time axis, as its number of seconds and its name.

    Args:
        seconds: Largest value on the axis.
    """
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds > 3 * unit:
            return unit, name
    return 1.0, "seconds"
