"""Overruns of a run's budget: the bytes predicted, the bytes measured, and the safety margin of its next plan.

They are kept as `overruns.json` in the folder of the run. Planning the run again adds `margin_bytes` to the prediction
of the phases that a plan decides about. There is an end to it: a plan fits only if prediction and margin together are
within the budget. So the next overrun is above prediction and margin, and its margin larger by SPREAD_BYTES at least.
"""

from __future__ import annotations

from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import RUNNING, Overrun, Planned
from plimsoll.units import MIB
from plimsoll.values import from_json, to_json

FILE = "overruns.json"
SPREAD_BYTES = 6 * MIB
"""Difference of the peaks of one plan between processes (notes, "Prediction": up to 5.3 MiB)."""


def read(folder: RunFolder) -> list[Overrun]:
    """Returns the overruns, the first one first. Raises RunError where the file is damaged."""
    if not folder.has(FILE):
        return []
    try:
        rows = folder.read(FILE)["overruns"]
        return [from_json(Overrun, row, f"overruns[{number}]") for number, row in enumerate(rows)]
    except (LookupError, TypeError) as problem:
        raise folder.damaged(FILE, problem) from None


def add(folder: RunFolder, overrun: Overrun) -> None:
    folder.write(FILE, to_json({"overruns": [*read(folder), overrun]}))


def margin_bytes(overruns: list[Overrun]) -> int:
    """Returns the safety margin that the next plan leaves free beyond its prediction."""
    return max((overrun.excess_bytes + SPREAD_BYTES for overrun in overruns), default=0)


def predicted_running_bytes(planned: Planned) -> int:
    """Returns the highest predicted peak of the phases in RUNNING, without the plan's margin."""
    peaks = planned.ledger.phases
    return max(peaks.get(phase, 0) for phase in RUNNING) - planned.margin_bytes
