"""Overruns of a run's budget: the bytes predicted, the bytes measured, and the safety margin of its next plan.

They are kept as `overruns.json` in the folder of the run. Planning the run again adds `margin_bytes` to the prediction
of the phases that a plan decides about. There is an end to it: a plan fits only if prediction and margin together are
within the budget. So the next overrun is above prediction and margin, and its margin larger by SPREAD_BYTES at least.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import RUNNING
from plimsoll.units import MIB, format_bytes

FILE = "overruns.json"
SPREAD_BYTES = 6 * MIB
"""Difference of the peaks of one plan between processes (notes, "Prediction": up to 5.3 MiB)."""


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """One time that the budget was exceeded, or that an allocator refused what a step needed."""

    step: int
    """Step of the checkpoint from which training continues; 0 for the beginning."""
    what: Literal["resident set", "allocator"]
    budget_bytes: int
    predicted_bytes: int
    """Predicted peak of the phases in RUNNING, without an earlier margin."""
    measured_bytes: int
    """Peak resident set; on an accelerator, the most its allocator had given out."""
    said: str = ""
    """First line of the allocator's refusal."""
    process: int | None = None
    """Number of the process, of several that train together; None of one alone."""

    @property
    def excess_bytes(self) -> int:
        """Bytes that the prediction lacked: no measured peak holds a refused allocation, but it was over the budget."""
        return max(self.measured_bytes, self.budget_bytes) - self.predicted_bytes

    def words(self) -> str:
        """Returns the overrun for the log and the ledger, without its step."""
        budget = f"{format_bytes(self.predicted_bytes)} were predicted, the budget is {format_bytes(self.budget_bytes)}"
        if self.what == "allocator":
            return f"the allocator refused ({self.said}) with {format_bytes(self.measured_bytes)} in use; {budget}"
        of = "" if self.process is None else f" of process {self.process}"
        return f"the resident set{of} reached {format_bytes(self.measured_bytes)}; {budget}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"excess_bytes": self.excess_bytes}


def read(folder: RunFolder) -> list[Overrun]:
    """Returns the overruns, the first one first. Raises RunError where the file is damaged."""
    try:
        rows = folder.read(FILE)["overruns"] if folder.has(FILE) else []
        found = [Overrun(**{name: value for name, value in row.items() if name != "excess_bytes"}) for row in rows]
        margin_bytes(found)  # sizes that are no numbers
    except (KeyError, TypeError, AttributeError) as problem:
        raise folder.damaged(FILE, problem) from None
    return found


def add(folder: RunFolder, overrun: Overrun) -> None:
    folder.write(FILE, {"overruns": [each.to_dict() for each in [*read(folder), overrun]]})


def margin_bytes(overruns: list[Overrun]) -> int:
    """Returns the safety margin that the next plan leaves free beyond its prediction."""
    return max((overrun.excess_bytes + SPREAD_BYTES for overrun in overruns), default=0)


def predicted_running_bytes(planned: Mapping[str, Any]) -> int:
    """Returns the highest peak that a `plan.json` predicts for the phases in RUNNING, without its margin."""
    highest = max(planned["phases"].get(phase, 0) for phase in RUNNING)
    return highest - planned["margin_bytes"]
