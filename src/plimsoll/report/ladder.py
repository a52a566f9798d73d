"""The table of `plimsoll ladder`: bytes, step time and loss of a recipe, one rung (more levers) per line."""

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
    """One rung of a ladder, with its predicted figures and, if it was trained, its measured figures.

    None stands for an unknown figure.
    """

    name: str
    numerics: str
    """Value of --numerics that the rung's levers need."""
    words: str
    """Description of the lever that the rung adds."""
    lever: str | None = None
    """Lever that the rung adds; None for the first rung."""
    outcome: Literal["predicted", "measured", "failed"] = "predicted"
    why_not: str | None = None
    """Reason that the rung failed."""
    plan: Plan | None = None
    parameters: int | None = None
    """Number of parameters of the model."""
    predicted_peak_bytes: int | None = None
    phase: str | None = None
    """Phase of training with the predicted peak."""
    source: str | None = None
    """Source of the predicted bytes: compiled or estimated."""
    state_bytes: int | None = None
    """Bytes of the training state on one device."""
    temporary_bytes: int | None = None
    """Bytes of the step's temporaries on one device."""
    host_bytes: int | None = None
    """Bytes in the memory of each host, beside an accelerator."""
    step_seconds: float | None = None
    """Seconds of a step: predicted, or the median of measured steps."""
    session_step_seconds: list[float] = field(default_factory=list[float])
    """Median seconds of a step in each training session."""
    per_second: float | None = None
    """Tokens or examples per second."""
    measured_peak_bytes: int | None = None
    loss: float | None = None
    """Training loss of the last step."""
    validation_loss: float | None = None
    step_ratio: float | None = None
    """Step time divided by the step time of the first trained rung."""
    loss_drift: float | None = None
    """Largest relative difference of any step's loss from the same step of the first trained rung."""

    def to_dict(self, rate_unit: str) -> dict[str, Any]:
        """Returns the row as JSON, with the rate named by its unit."""
        content = values.fields_to_json(self)
        content[f"{rate_unit}_per_second"] = content.pop("per_second")
        return content


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The rungs of one recipe, beginning with the plain plan."""

    recipe: str
    chip: str | None = None
    """Chip of a ladder that was only planned; None for a trained ladder."""
    effective_batch: int
    rate_unit: str
    budget_bytes: int
    stops: tuple[int, ...] = ()
    """Steps at which the training sessions of each rung end."""
    rungs: list[LadderRow]
    left_out: Mapping[str, str]
    """Map from the name of an omitted rung to the reason."""

    @property
    def parameters(self) -> int | None:
        """Number of parameters, from the first rung that has a plan."""
        return next((row.parameters for row in self.rungs if row.parameters is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the output of `plimsoll ladder --json`."""
        rungs = [row.to_dict(self.rate_unit) for row in self.rungs]
        return values.fields_to_json(replace(self, rungs=[])) | {"parameters": self.parameters, "rungs": rungs}


def _mebibytes(size: int | None) -> str:
    """Formats a size in MiB, also a large one, so that the sizes of a column can be compared by eye."""
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
    """Returns the output of `plimsoll ladder`: a line per rung, the levers added, rungs left out, and explanations."""
    first, last = ladder.stops
    notes = [
        ("measured", f"peak of the whole process, in steps 1 to {first} or after a restart from there to {last}"),
        ("step", "median; the sessions of all rungs were taken in turn"),
        ("drift", "largest difference of a step's training loss from that of the first rung that was run, as a share"),
    ]
    return _text(_title(ladder), ladder, {**PREDICTED, **MEASURED}, notes)


def predicted_table(ladder: Ladder) -> str:
    """Returns the output of `plimsoll ladder --chip`: a line per rung, the levers added, and rungs left out."""
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
