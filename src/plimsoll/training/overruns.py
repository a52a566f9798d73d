"""When a run went over its budget: what was predicted, what it took, and the room that its next plan leaves for that.

Kept as `overruns.json` in the folder of the run. Whoever plans the run again adds `margin_bytes` to the prediction of
the phases that a plan decides about. There is an end to it: a plan fits only if prediction and margin together are
within the budget, so what goes over the budget is more than the margin above the prediction, and the next margin is
larger by SPREAD_BYTES at least.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plimsoll.planned import RUNNING
from plimsoll.runs.folder import RunFolder
from plimsoll.units import MIB, format_bytes

FILE = "overruns.json"
SPREAD_BYTES = 6 * MIB
"""What peaks of the same plan differ by, from process to process (docs/log.md, "Prediction": up to 5.3 MiB)."""


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """One time that the line was crossed, or that an allocator refused what a step needed."""

    step: int
    """Of the checkpoint that training goes on from; 0 for the beginning."""
    what: Literal["resident set", "allocator"]
    budget_bytes: int
    predicted_bytes: int
    """The peak of the phases in RUNNING, without what was learned before."""
    measured_bytes: int
    """What was resident at most; on an accelerator, what its allocator had given out at most."""
    said: str = ""
    """The first line of the allocator's refusal."""

    @property
    def excess_bytes(self) -> int:
        """What the prediction lacked. No measured peak holds a refused allocation, but it was beyond the budget."""
        return max(self.measured_bytes, self.budget_bytes) - self.predicted_bytes

    def words(self) -> str:
        """For the log and the ledger, but for the step."""
        there = f"{format_bytes(self.predicted_bytes)} were predicted, the budget is {format_bytes(self.budget_bytes)}"
        if self.what == "allocator":
            return f"the allocator refused ({self.said}) with {format_bytes(self.measured_bytes)} in use; {there}"
        return f"the resident set reached {format_bytes(self.measured_bytes)}; {there}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"excess_bytes": self.excess_bytes}


def read(folder: RunFolder) -> list[Overrun]:
    """The first one first. RunError where the file is damaged."""
    found = folder.read(FILE)["overruns"] if folder.has(FILE) else []
    return [Overrun(**{name: value for name, value in one.items() if name != "excess_bytes"}) for one in found]


def add(folder: RunFolder, overrun: Overrun) -> None:
    folder.write(FILE, {"overruns": [one.to_dict() for one in [*read(folder), overrun]]})


def margin_bytes(overruns: list[Overrun]) -> int:
    """What the next plan has to leave free beyond its prediction."""
    return max((one.excess_bytes + SPREAD_BYTES for one in overruns), default=0)


def predicted_running_bytes(planned: Mapping[str, Any]) -> int:
    """The highest peak that a `plan.json` predicts for the phases a plan decides about, without what was learned."""
    learned = planned.get("learned", {})
    return max(planned["phases"][phase] - learned.get(phase, 0) for phase in RUNNING)
