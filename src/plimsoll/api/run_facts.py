"""Progress and memory of a run, read from its files: for `plimsoll runs`, and for printing a `Run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import PlimsollError, RunError, as_written
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import RunLedger
from plimsoll.report.metrics import read_rows
from plimsoll.values import to_json


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownLedger(RunLedger):
    """Peak memory of a run in bytes, predicted and measured. It prints as a table."""

    @property
    def parts(self) -> dict[str, dict[str, int | None]]:
        """Dict from part (parameters, optimizer, step temporaries, ...) to its `predicted` and `measured` bytes."""
        return to_json(self.components)

    def __repr__(self) -> str:
        from plimsoll.report.tables import ledger_table

        return ledger_table(self)


def run_row(path: Path, *, name: str) -> dict[str, Any]:
    """Returns a run's row of the table of `plimsoll runs`. Damaged files are named in its `state`, without an error."""
    row: dict[str, Any] = {"name": name, "path": str(path)}
    try:
        with as_written(f"a file of {path}"):
            return row | _read_run(RunFolder(path))
    except PlimsollError as problem:
        return row | {"state": f"damaged: {problem}"}


def optional(folder: RunFolder, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file of the run; an empty dict if the file does not exist yet."""
    return folder.read(name) if folder.has(name) else {}


def _read_run(folder: RunFolder) -> dict[str, Any]:
    data = optional(folder, "data.json")
    rows = list(read_rows(folder.metrics))

    # Find the latest step: the last logged one during training, else the last saved one.
    steps = data.get("steps")
    step = max(folder.saved_steps(), default=None)
    state = folder.state(steps)
    if state == "training now" and rows:
        step = rows[-1]["step"]
    row = {
        "recipe": folder.read("recipe.json").get("kind"),
        "step": step,
        "steps": steps,
        "state": state,
        **_losses(rows, since=data.get("data_since", 0)),
    }

    # Add the bytes.
    if folder.has("plan.json"):
        planned = folder.planned()
        row |= {
            "recipe": planned.recipe,
            "predicted_bytes": planned.peak_bytes,
            "budget_bytes": planned.ledger.budget_bytes,
        }
    if folder.has("ledger.json"):
        row["peak_bytes"] = folder.ledger().measured_bytes
    return row


def _losses(rows: list[dict[str, Any]], *, since: int) -> dict[str, Any]:
    """Returns the latest training loss, and the best evaluation after step `since`, when the data last changed."""
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    evaluations = [row for row in rows if row.get("validation_loss") is not None and row["step"] > since]
    best = min(evaluations, key=lambda row: row["validation_loss"], default=dict[str, Any]())
    return {
        "loss": losses[-1] if losses else None,
        "best_validation_loss": best.get("validation_loss"),
        "exact_accuracy": best.get("validation_exact_accuracy"),
    }


def ledger_of(folder: RunFolder) -> ShownLedger:
    """Returns the memory of a run from its ledger.json, or from its plan.json before the first session has ended.

    Raises:
        RunError: Both files are missing, or one is damaged.
    """
    if folder.has("ledger.json"):
        return ShownLedger(**vars(folder.ledger()))
    if not folder.has("plan.json"):
        raise RunError(f"{folder.path} has no plan yet, so that no bytes are predicted: train it first")
    return ShownLedger.of_plan(folder.planned())
