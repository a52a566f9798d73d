"""The table of `plimsoll ladder`: bytes, step time and loss of a recipe.

Each line is a rung: a training run with one more memory-saving option (lever) than the line before.
"""

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
    """One rung (line) of the table, with predicted figures and, if it was trained, measured figures.

    An unknown figure is None.
    """

    name: str
    numerics: str
    """Value of --numerics that allows the memory-saving options of this line."""
    words: str
    """Description of the memory-saving option that this line adds."""
    lever: str | None = None
    """Name of the memory-saving option that this line adds; None for the first line."""
    outcome: Literal["predicted", "measured", "failed"] = "predicted"
    why_not: str | None = None
    """Reason that planning or training failed."""
    plan: Plan | None = None
    parameters: int | None = None
    """Number of parameters of the model."""
    predicted_peak_bytes: int | None = None
    phase: str | None = None
    """Phase of training in which memory use is predicted to peak."""
    source: str | None = None
    """Source of the predicted bytes: `compiled` or `estimated`."""
    state_bytes: int | None = None
    """Bytes of the training state on one device."""
    temporary_bytes: int | None = None
    """Bytes of the step's temporaries on one device."""
    host_bytes: int | None = None
    """Predicted peak bytes of each host's memory; None on a CPU."""
    step_seconds: float | None = None
    """Seconds per step: predicted, or the measured median."""
    session_step_seconds: list[float] = field(default_factory=list[float])
    """Median seconds per step of each of two training sessions; the second continues the run of the first."""
    per_second: float | None = None
    """Tokens or examples per second."""
    measured_peak_bytes: int | None = None
    loss: float | None = None
    """Training loss of the final step."""
    validation_loss: float | None = None
    step_ratio: float | None = None
    """Step time divided by the step time of the first trained line of the table."""
    loss_drift: float | None = None
    """Largest relative difference, over all steps, between this line's loss and the first trained line's loss."""

    def to_dict(self, rate_unit: str) -> dict[str, Any]:
        """Returns the row as JSON. The key of the rate is, for example, `tokens_per_second`."""
        content = values.fields_to_json(self)
        content[f"{rate_unit}_per_second"] = content.pop("per_second")
        return content


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Table of one recipe. Its first line (rung) is a plan without memory-saving options."""

    recipe: str
    chip: str | None = None
    """Chip that the lines were planned for; None if they were trained on this machine's CPU."""
    effective_batch: int
    rate_unit: str
    budget_bytes: int
    stops: tuple[int, ...] = ()
    """Steps at which the first and the second training session of each line end."""
    rungs: list[LadderRow]
    left_out: Mapping[str, str]
    """Map from the name of an omitted line to the reason."""

    @property
    def parameters(self) -> int | None:
        """Number of the model's parameters; None if no line has a plan."""
        return next((row.parameters for row in self.rungs if row.parameters is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the output of `plimsoll ladder --json`."""
        rungs = [row.to_dict(self.rate_unit) for row in self.rungs]
        return values.fields_to_json(replace(self, rungs=[])) | {"parameters": self.parameters, "rungs": rungs}


def _mebibytes(size: int | None) -> str:
    """Formats bytes in MiB, however large, so that the sizes of a column can be compared by eye."""
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
    """Returns the output of `plimsoll ladder`: table, each line's memory-saving option, omitted lines, and notes."""
    first, last = ladder.stops
    notes = [
        ("measured", f"peak of the whole process, in steps 1 to {first} or after a restart from there to {last}"),
        ("step", "median; the sessions of all rungs were taken in turn"),
        ("drift", "largest difference of a step's training loss from that of the first rung that was run, as a share"),
    ]
    return _text(_title(ladder), ladder, {**PREDICTED, **MEASURED}, notes)


def predicted_table(ladder: Ladder) -> str:
    """Returns the output of `plimsoll ladder --chip`: the table with host memory, but without measured figures."""
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
