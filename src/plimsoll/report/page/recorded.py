"""Data of a run that its page is made from: its files, and examples of what its model makes.

Only a few fields are required: a run may have been killed, may still train, or may never have logged a step.
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
    """Values of a metric, in the rows that have it."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    """Seconds since the start of the whole run."""
    values: array[float] = field(default_factory=lambda: array("d"))

    @property
    def finite(self) -> list[float]:
        """Values without NaN and infinities."""
        return [value for value in self.values if math.isfinite(value)]

    def line(self, name: str, *, second: float = 0, unit: float = 1, is_marked: bool = False) -> Line:
        """Returns the values as a curve over optimizer steps, or over time where `second` is its unit in seconds."""
        xs = [at / second for at in self.seconds] if second else self.steps
        return Line(name=name, xs=xs, ys=[value / unit for value in self.values], is_marked=is_marked)


def columns_of(rows: Iterable[Facts]) -> dict[str, Column]:
    """Returns the rows as a column per metric, with 24 bytes a value. Values that are not numbers are left out."""
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
    """Data of a run."""

    name: str
    path: str
    state: str
    """One of `finished`, `training now`, `stopped at step 120`, `nothing saved`."""
    recipe: Facts
    """Content of recipe.json."""
    planned: Planned | None = None
    ledger: RunLedger | None = None
    """Bytes predicted and measured; None before there is a plan."""
    steps: int | None = None
    """Steps of the whole run, once its data are prepared."""
    data: str = ""
    """Description of its data."""
    sessions: Sequence[Facts] = ()
    """Time, versions and machine of each start."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    chosen: Facts = field(default_factory=dict)
    """Options of the recipe that differ from the preset's."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands that continue, repeat or use the run, by what they do."""
    learning_rate: tuple[Sequence[float], Sequence[float]] | None = None
    """Steps, and the learning rate of each."""
    exhibits: Sequence[Facts] = ()
    """Examples of what the model makes, as `Uses.exhibits` gives them."""
    left_out: Sequence[str] = ()
    """Sentences about what is missing on the page, and why."""

    def column(self, name: str) -> Column:
        """Returns the values of a metric; none if it was never logged."""
        return self.columns.get(name) or Column()

    @property
    def recipe_name(self) -> str:
        """Name of the recipe in its plan, else its kind."""
        return self.planned.recipe if self.planned else self.recipe["kind"]

    @property
    def budget_bytes(self) -> int | None:
        """Budget of one device, or of the process on a CPU."""
        return self.ledger and self.ledger.budget_bytes

    @property
    def memory_kind(self) -> str:
        """Memory that the budget is of: `device` where an allocator of an accelerator counts it, else `resident`."""
        return "device" if "device_bytes" in self.columns else "resident"

    @property
    def measured_peak_bytes(self) -> float | None:
        """Peak of all processes of the run, from its ledger; before there is one, the highest that was logged."""
        measured = self.ledger and self.ledger.measured_bytes
        return measured or max(self.column(f"peak_{self.memory_kind}_bytes").finite, default=None)

    @property
    def last_step(self) -> int:
        """Last step whose loss was logged."""
        return int(max(self.column("loss").steps, default=0))

    @property
    def elapsed_seconds(self) -> float:
        """Training time of the whole run so far."""
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
        """Median of the throughput; None before one was logged."""
        rates = self.column(f"{self.rate_unit}_per_second").finite
        return median(rates) if rates else None

    def best(self) -> tuple[int, float] | None:
        """Returns step and value of the lowest validation loss."""
        column = self.column("validation_loss")
        pairs = zip(column.values, column.steps, strict=True)
        lowest, step = min((pair for pair in pairs if math.isfinite(pair[0])), default=(0.0, 0.0))
        return (int(step), lowest) if step else None


def time_axis(seconds: float) -> tuple[float, str]:
    """Returns the seconds of an axis' unit, and its name."""
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds > 3 * unit:
            return unit, name
    return 1.0, "seconds"
