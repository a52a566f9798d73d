"""How far a run came, and its bytes: the row of `plimsoll runs`, and what a `Run` prints. From its files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import PlimsollError, RunError, as_written
from plimsoll.files.run_folder import RunFolder
from plimsoll.report.metrics import read_rows


@dataclass(frozen=True)
class RunLedger:
    """Bytes of a run, predicted and measured. Printed as a table."""

    facts: Mapping[str, Any]
    """Content of the run's ledger.json; without measurements where no session has ended yet."""

    @property
    def budget_bytes(self) -> int:
        """Bytes that the run may take, of one device."""
        return self.facts["budget_bytes"]

    @property
    def predicted_bytes(self) -> int:
        """Predicted peak."""
        return self.facts["predicted"]["peak_bytes"]

    @property
    def measured_bytes(self) -> int | None:
        """Measured peak of all sessions; None where none has ended yet."""
        return self.facts["measured"]["peak_bytes"]

    @property
    def parts(self) -> dict[str, dict[str, int | None]]:
        """Bytes `predicted` and `measured`, by the name of the part: parameters, optimizer, step temporaries, ..."""
        return {name: dict(part) for name, part in self.facts["components"].items()}

    def __str__(self) -> str:
        from plimsoll.report.tables import ledger_table

        return ledger_table(self.facts)

    def __repr__(self) -> str:
        return str(self)


def run_row(path: Path, *, name: str) -> dict[str, Any]:
    """Returns the row that `runs_table` prints. A file that cannot be read is the state of that run, and
    refuses nothing."""
    row: dict[str, Any] = {"name": name, "path": str(path)}
    try:
        with as_written(f"a file of {path}"):
            return row | _read_run(RunFolder(path))
    except PlimsollError as problem:
        return row | {"state": f"damaged: {problem}"}


def optional(folder: RunFolder, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file; nothing if the run does not have it yet."""
    return folder.read(name) if folder.has(name) else {}


def _read_run(folder: RunFolder) -> dict[str, Any]:
    data, planned, ledger = (optional(folder, f"{name}.json") for name in ("data", "plan", "ledger"))
    rows = list(read_rows(folder.metrics))
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    since = data.get("data_since", 0)
    evaluations = [row for row in rows if row.get("validation_loss") is not None and row["step"] > since]
    best = min(evaluations, key=lambda row: row["validation_loss"], default=dict[str, Any]())

    steps, step = data.get("steps"), max(folder.saved_steps(), default=None)
    state = folder.state(steps)
    if state == "training now" and rows:
        step = rows[-1]["step"]
    return {
        "recipe": planned.get("recipe") or folder.read("recipe.json").get("kind"),
        "step": step,
        "steps": steps,
        "loss": losses[-1] if losses else None,
        "best_validation_loss": best.get("validation_loss"),
        "exact_accuracy": best.get("validation_exact_accuracy"),
        "predicted_bytes": planned.get("predicted_peak_bytes"),
        "peak_bytes": ledger.get("measured", {}).get("peak_bytes"),
        "budget_bytes": planned.get("budget_bytes"),
        "state": state,
    }


def ledger_of(folder: RunFolder) -> RunLedger:
    """Returns the bytes of a run, from its ledger.json, or before the end of its first session from its plan.json.

    Raises:
        RunError: It has neither.
        PlimsollError: Its ledger.json is damaged.
    """
    if folder.has("ledger.json"):
        ledger = RunLedger(folder.read("ledger.json"))
        with as_written(f"ledger.json of {folder.path}"):
            _ = ledger.predicted_bytes, ledger.measured_bytes, ledger.budget_bytes, ledger.parts
        return ledger
    if not folder.has("plan.json"):
        raise RunError(f"{folder.path} has no plan yet, so that no bytes are predicted: train it first")
    planned = folder.read("plan.json")
    with as_written(f"plan.json of {folder.path}"):
        parts = {name: {"predicted": size, "measured": None} for name, size in planned["components"].items()}
        facts = {
            **{name: planned[name] for name in ("budget_bytes", "phase", "source")},
            "predicted": {"peak_bytes": planned["predicted_peak_bytes"], "phases": planned["phases"]},
            "measured": {"peak_bytes": None},
            "components": parts,
        }
    return RunLedger(facts)
