"""Overruns of a run's memory budget, and the safety margin that they add to the run's next plan.

Overruns are kept as `overruns.json` in the run folder. Planning the run again adds `margin_bytes` to the predicted peak
of training steps, evaluations and saves (RUNNING). This terminates: a plan fits only if prediction and margin together
are within the budget. So each further overrun exceeds both, and raises the margin by at least SPREAD_BYTES.
"""

from __future__ import annotations

from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import RUNNING, Overrun, Planned
from plimsoll.units import MIB
from plimsoll.values import from_json, to_json

FILE = "overruns.json"
SPREAD_BYTES = 6 * MIB
"""Variation of a plan's peak between processes, in bytes. Up to 5.3 MiB was measured (notes, "Prediction")."""


def read(folder: RunFolder) -> list[Overrun]:
    """Returns the overruns of a run, the earliest first. Raises RunError if their file is damaged."""
    if not folder.has(FILE):
        return []
    try:
        rows = folder.read(FILE)["overruns"]
        return [from_json(Overrun, row, f"overruns[{number}]") for number, row in enumerate(rows)]
    except (LookupError, TypeError) as problem:
        raise folder.damaged(FILE, problem) from None


def add(folder: RunFolder, overrun: Overrun) -> None:
    """Appends an overrun to the run's overruns.json."""
    folder.write(FILE, to_json({"overruns": [*read(folder), overrun]}))


def margin_bytes(overruns: list[Overrun]) -> int:
    """Returns the safety margin of the next plan: bytes that stay free in addition to its predicted peak."""
    return max((overrun.excess_bytes + SPREAD_BYTES for overrun in overruns), default=0)


def predicted_running_bytes(planned: Planned) -> int:
    """Returns the highest predicted peak of training steps, evaluations and saves, without the plan's margin."""
    peaks = planned.ledger.phases
    return max(peaks.get(phase, 0) for phase in RUNNING) - planned.margin_bytes
