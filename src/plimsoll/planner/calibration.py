"""Errors of earlier predictions of a kind: kept in the user's cache folder, shown, and learned from.

`calibration.json` holds, for every recipe kind, chip, platform and set of versions, the last KEPT sessions with
training, an evaluation and a save. `PLIMSOLL_CALIBRATION=off` neither reads nor writes it.

A phase is corrected once ENOUGH sessions have measured it. A prediction that is too low costs a run, one that is too
high only some memory, so the two directions differ. Up: by the upper quartile of the errors, which one odd session does
not move. Down: only when all sessions used less, by the smallest surplus minus their spread, and only for predictions
no larger than theirs, since errors grow with the prediction.

A step that was only traced (liveness.py) has no session of its own: `estimate_band` gives its distance from compilers.
"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.planned import Ledger
from plimsoll.planner.types import Correction

FILE = "calibration.json"
KEPT = 64
"""Sessions of one key that are kept, and keys: the newest."""
ENOUGH = 3
"""Sessions that must have measured a phase before its prediction is corrected."""
HIGHEST_SHARE = 0.25
"""Largest correction upwards, as a share of the smallest prediction; larger errors are left to overruns."""
FOR_ONE_DEVICE = 20, (0.76, 1.28)
"""Number of estimated plans that were compared with a compiler, and the lowest and highest of them: what a step needs
beyond its state, as estimated, over what the compiler reported. 10 for an h200 on 2026-11-21 and 10 on 2026-11-26 (jax
0.10.2), drawn at random; docs/chips.md lists the later ones."""
FOR_SEVERAL = 32, (0.46, 1.73)
"""The same for a tpu-v5e-8 and a tpu-v4-64: 14 and 18 on those days."""
TRACED = "temporaries"
"""End of the names of components that are counted in a traced function; all others are exact, or measured."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Bytes of one session, by phase; only phases that raised the session's peak could be measured."""

    predicted: Mapping[str, int]
    """Prediction as computed, without a correction."""
    corrected: Mapping[str, int]
    """Prediction as shown: with the correction of that day."""
    measured: Mapping[str, int]
    plan: Mapping[str, Any]

    def lacking(self) -> dict[str, int]:
        """Returns measured minus computed bytes, of the phases that were measured."""
        return {phase: size - self.predicted[phase] for phase, size in self.measured.items() if phase in self.predicted}


def is_on() -> bool:
    """Returns whether calibration is on, as it is by default."""
    return os.environ.get("PLIMSOLL_CALIBRATION", "on") != "off"


def key_of(kind: str, chip: str) -> str:
    """Returns what the memory of a process depends on: recipe, chip, platform, and versions of what it loads."""
    names = ("jax", "jaxlib", "flax", "orbax-checkpoint", "grain", "numpy")
    versions = [f"plimsoll {_version('plimsoll-jax')}"]  # of our distribution, the package's name
    versions += [f"{name} {_version(name)}" for name in names]
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return ", ".join([kind, chip, f"{platform.system()} {platform.machine()}", python, *versions])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a checkout that is on the path, and not installed
        return "unknown"


def corrections(samples: Sequence[Sample]) -> dict[str, Correction]:
    """Returns the corrections by phase; none for a phase that fewer than ENOUGH sessions have measured."""
    corrections = {}
    for phase in sorted({phase for sample in samples for phase in sample.lacking()}):
        sessions = [sample for sample in samples if phase in sample.lacking()]
        if len(sessions) < ENOUGH:
            continue
        errors = sorted(sample.lacking()[phase] for sample in sessions)
        predicted = [sample.predicted[phase] for sample in sessions]
        more = errors[3 * (len(errors) - 1) // 4]  # upper quartile, of three the median: never the highest alone
        if more <= 0:
            more = min(0, errors[-1] + (errors[-1] - errors[0]))
        more = min(more, round(HIGHEST_SHARE * min(predicted)))
        if more:
            corrections[phase] = Correction(more_bytes=more, seen_bytes=max(predicted))
    return corrections


def error_band(samples: Sequence[Sample]) -> dict[str, int]:
    """Returns `sessions`, and `median_bytes`, `lowest_bytes`, `highest_bytes` of their errors.

    An error is the measured peak of a session minus what was shown for the phase that it was measured in: a save that
    was promised to be higher may have met no step at its highest, and says nothing of that step's prediction.
    """
    errors = []
    for sample in samples:
        phase = max(sample.measured, key=sample.measured.__getitem__)
        errors.append(sample.measured[phase] - sample.corrected.get(phase, max(sample.corrected.values())))
    if not errors:
        return {"sessions": 0}
    return {
        "sessions": len(errors),
        "median_bytes": round(statistics.median(errors)),
        "lowest_bytes": min(errors),
        "highest_bytes": max(errors),
    }


def compared(devices: int) -> tuple[int, tuple[float, float]]:
    """Returns how many estimated plans for so many devices were compared, and the lowest and highest of them."""
    return FOR_ONE_DEVICE if devices == 1 else FOR_SEVERAL


def estimate_band(ledger: Ledger, *, devices: int = 1) -> dict[str, Any] | None:
    """Returns where the compiler's bytes may be, for an estimated ledger; None for one that was compiled.

    `lowest` and `highest` are shares of the temporaries, to be added to them; `lowest_peak_bytes` and
    `highest_peak_bytes` follow, and the highest may be over the budget.
    """
    if ledger.source != "estimated":
        return None
    plans, (least, most) = compared(devices)
    lowest, highest = 1 / most, 1 / least
    peak = ledger.predicted_peak_bytes
    traced = sum(size for name, size in ledger.predicted.items() if name.endswith(TRACED))
    return {
        "lowest": round(lowest - 1, 2),
        "highest": round(highest - 1, 2),
        "plans": plans,
        "lowest_peak_bytes": round(peak - traced + lowest * traced),
        "highest_peak_bytes": round(peak - traced + highest * traced),
    }


def read(folder: Path, key: str) -> tuple[list[Sample], str | None]:
    """Returns the sessions of that key, the oldest first; and what is wrong with the file, in words."""
    everything, problem = _everything(folder / FILE)
    return [Sample(**sample) for sample in everything.get(key, [])], problem


def add(folder: Path, key: str, sample: Sample) -> str | None:
    """Adds a session. Returns what was wrong with the file, in words: then it starts anew."""
    with open(folder / f"{FILE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs that end at once do not lose each other
        everything, problem = _everything(folder / FILE)
        samples = [*everything.pop(key, []), dataclasses.asdict(sample)]
        everything[key] = samples[-KEPT:]
        newest = dict(list(everything.items())[-KEPT:])
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(newest, file)
        os.replace(file.name, folder / FILE)
    return problem


def _everything(path: Path) -> tuple[dict[str, list[dict[str, Any]]], str | None]:
    try:
        rows = json.loads(path.read_text())
        for sample in (Sample(**row) for samples in rows.values() for row in samples):
            for sizes in (sample.predicted, sample.corrected, sample.measured):
                if not sizes or not all(isinstance(size, int) for size in sizes.values()):
                    raise ValueError("a session without its bytes by phase")
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        return {}, f"{path} is damaged ({problem}): nothing is learned from it, and the next session replaces it"
    return rows, None
