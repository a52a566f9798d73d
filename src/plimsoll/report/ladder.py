"""A recipe's memory table: every rung with its bytes, its time and its loss, as `plimsoll ladder` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from plimsoll import values
from plimsoll.planned import Plan
from plimsoll.report.layout import UNKNOWN, Cells, all_labelled, known, table
from plimsoll.units import MIB, format_bytes, format_count, format_seconds


@dataclass(kw_only=True)
class LadderRow:
    """One rung: figures that were predicted, and where it was trained, measured. None for those that nobody knows."""

    name: str
    numerics: str
    words: str
    lever: str | None = None
    """Lever that is new; None on the first rung."""
    outcome: Literal["predicted", "measured", "failed"] = "predicted"
    why_not: str | None = None
    """Reason of a failure."""
    plan: Plan | None = None
    parameters: int | None = None
    predicted_peak_bytes: int | None = None
    phase: str | None = None
    source: str | None = None
    state_bytes: int | None = None
    temporary_bytes: int | None = None
    host_bytes: int | None = None
    step_seconds: float | None = None
    session_step_seconds: list[float] = field(default_factory=list[float])
    per_second: float | None = None
    """Tokens, or examples."""
    measured_peak_bytes: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    step_ratio: float | None = None
    """Time of a step over that of the first rung that was trained."""
    loss_drift: float | None = None
    """Largest difference of a step's loss from that rung's, as a share."""

    def to_dict(self, rate_unit: str) -> dict[str, Any]:
        """Returns the row as it stands in JSON."""
        content = values.fields_to_json(self)
        content[f"{rate_unit}_per_second"] = content.pop("per_second")
        return content


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs of a recipe, the plain one first."""

    recipe: str
    chip: str | None = None
    """Chip that they were compiled for; None of a ladder that was trained."""
    effective_batch: int
    rate_unit: str
    budget_bytes: int
    stops: tuple[int, ...] = ()
    """Steps at which the sessions ended."""
    rungs: list[LadderRow]
    left_out: Mapping[str, str]
    """Names of other rungs, with the reason."""

    @property
    def parameters(self) -> int | None:
        """Parameters of the first rung that has a plan."""
        return next((row.parameters for row in self.rungs if row.parameters is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `plimsoll ladder --json` prints."""
        rungs = [row.to_dict(self.rate_unit) for row in self.rungs]
        return values.fields_to_json(replace(self, rungs=[])) | {"parameters": self.parameters, "rungs": rungs}


def _mebibytes(size: int | None) -> str:
    """Returns the size in MiB whatever it is, so that a column can be compared by eye."""
    return UNKNOWN if size is None else f"{size / MIB:,.1f} MiB"


PREDICTED: Cells = {
    "rung": ("l", lambda row: row.name),
    "numerics": ("l", lambda row: row.numerics),
    "predicted": ("r", lambda row: _mebibytes(row.predicted_peak_bytes)),
    "state": ("r", lambda row: _mebibytes(row.state_bytes)),
    "temporaries": ("r", lambda row: _mebibytes(row.temporary_bytes)),
    "step": ("r", lambda row: known(row.step_seconds, format_seconds)),
}
OF_THE_HOST: Cells = {"host": ("r", lambda row: _mebibytes(row.host_bytes))}
MEASURED: Cells = {
    "measured": ("r", lambda row: _mebibytes(row.measured_peak_bytes)),
    "x first": ("r", lambda row: known(row.step_ratio, ".2f")),
    "loss": ("r", lambda row: known(row.loss, ".4f")),
    "drift": ("r", lambda row: known(row.loss_drift, ".2g")),
}


def ladder_table(ladder: Ladder) -> str:
    """Returns what `plimsoll ladder` prints: a line per rung, what each adds, what is left out, how it was measured."""
    first, last = ladder.stops
    notes = [
        ("measured", f"peak of the whole process, in steps 1 to {first} or after a restart from there to {last}"),
        ("step", "median; the sessions of all rungs were taken in turn"),
        ("drift", "largest difference of a step's training loss from that of the first rung that was run, as a share"),
    ]
    return _text(_title(ladder), ladder, {**PREDICTED, **MEASURED}, notes)


def predicted_table(ladder: Ladder) -> str:
    """Returns what `plimsoll ladder --chip` prints: a line per rung, what each adds, and what is left out."""
    sources = ", ".join(sorted({row.source for row in ladder.rungs if row.source}))
    notes = [("bytes", f"{sources}, nothing was run"), ("step", "estimated from the chip's rates")]
    return _text(f"{_title(ladder)}, on {ladder.chip}", ladder, {**PREDICTED, **OF_THE_HOST}, notes)


def _text(title: str, ladder: Ladder, cells: Cells, notes: list[tuple[str, str]]) -> str:
    rows, budget = ladder.rungs, ladder.budget_bytes
    lines = [title, "", *table(rows, cells).lines(), "", "each rung keeps what the one before it had, and adds"]
    lines += all_labelled((row.name, row.words) for row in rows)
    if ladder.left_out:
        lines += ["left out", *all_labelled(ladder.left_out.items())]
    for row in rows:
        peak = row.measured_peak_bytes or row.predicted_peak_bytes or 0
        if row.why_not:
            notes.append((row.name, f"failed: {row.why_not}"))
        elif peak > budget:
            notes.append((row.name, f"over the {format_bytes(budget)} that it may use"))
    return "\n".join([*lines, "", *all_labelled(notes)])


def _title(ladder: Ladder) -> str:
    size = known(ladder.parameters, format_count)
    return f"ladder of {ladder.recipe}: {size} parameters, effective batch {ladder.effective_batch}"
