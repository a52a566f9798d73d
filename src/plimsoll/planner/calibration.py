"""What predictions of this kind were wrong by: kept in the user's cache folder, shown, and learned from.

`calibration.json` holds, for every recipe kind, chip, platform and set of versions, the last KEPT sessions that had
seen training, an evaluation and a save. `PLIMSOLL_CALIBRATION=off` neither reads nor writes it.

A phase is corrected once ENOUGH sessions have measured it. A prediction that is too low costs a run, one that is too
high only some room, so the two sides are not alike: up by the upper quartile of what was lacking, which one odd session
does not move; down by no more than every one of them allows, less their own spread, and not where the prediction is
larger than any of theirs: errors grow with what is predicted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.planner.types import Correction

FILE = "calibration.json"
KEPT = 64
"""Sessions of one key, and keys: the newest."""
ENOUGH = 3
"""Sessions that have measured a phase before its prediction moves."""
HIGHEST_SHARE = 0.25
"""Of the smallest prediction, upwards: what is wrong by more is no matter of estimating; an overrun deals with it."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One session. Bytes by phase; only phases that raised the session's peak could be measured."""

    predicted: Mapping[str, int]
    """As computed, without anything learned."""
    corrected: Mapping[str, int]
    """As promised: with the correction of that day."""
    measured: Mapping[str, int]
    plan: Mapping[str, Any]

    def lacking(self) -> dict[str, int]:
        """Measured minus computed, of the phases that were measured."""
        return {phase: size - self.predicted[phase] for phase, size in self.measured.items() if phase in self.predicted}

    @property
    def error_bytes(self) -> int:
        """Measured minus promised, of the peaks."""
        return max(self.measured.values()) - max(self.corrected.values())


def is_on() -> bool:
    return os.environ.get("PLIMSOLL_CALIBRATION", "on") != "off"


def key_of(kind: str, chip: str) -> str:
    """What a process weighs depends on these: recipe, chip, platform, and versions of what it loads."""
    names = ("plimsoll-jax", "jax", "jaxlib", "flax", "orbax-checkpoint", "grain", "numpy")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return ", ".join([kind, chip, f"{platform.system()} {platform.machine()}", python, *versions])


def corrections(samples: Sequence[Sample]) -> dict[str, Correction]:
    """By phase; of what a few sessions, or none, have measured: nothing."""
    lacking: dict[str, list[int]] = {}
    for sample in samples:
        for phase, size in sample.lacking().items():
            lacking.setdefault(phase, []).append(size)
    found = {}
    for phase, sizes in sorted(lacking.items()):
        seen = [sample.predicted[phase] for sample in samples if phase in sample.lacking()]
        more = min(_moved(sizes), round(HIGHEST_SHARE * min(seen))) if len(sizes) >= ENOUGH else 0
        if more:
            found[phase] = Correction(more_bytes=more, seen_bytes=max(seen))
    return found


def _moved(lacking: Sequence[int]) -> int:
    ordered = sorted(lacking)
    quartile = ordered[3 * (len(ordered) - 1) // 4]  # of three the median: never the highest alone
    if quartile > 0:
        return quartile
    return min(0, ordered[-1] + (ordered[-1] - ordered[0]))


def error_band(samples: Sequence[Sample]) -> dict[str, int]:
    """`sessions`, and of measured minus promised `median_bytes`, `lowest_bytes`, `highest_bytes`."""
    errors = [sample.error_bytes for sample in samples]
    if not errors:
        return {"sessions": 0}
    return {
        "sessions": len(errors),
        "median_bytes": round(statistics.median(errors)),
        "lowest_bytes": min(errors),
        "highest_bytes": max(errors),
    }


def read(folder: Path, key: str) -> tuple[list[Sample], str | None]:
    """The sessions of that key, the oldest first; and what is wrong with the file, in words."""
    everything, problem = _everything(folder / FILE)
    return [Sample(**sample) for sample in everything.get(key, [])], problem


def add(folder: Path, key: str, sample: Sample) -> str | None:
    """What was wrong with the file, in words: then it begins anew. Two runs that end at once do not lose each other."""
    with _locked(folder):
        everything, problem = _everything(folder / FILE)
        samples = [*everything.pop(key, []), dataclasses.asdict(sample)]
        everything[key] = samples[-KEPT:]
        newest = dict(list(everything.items())[-KEPT:])
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump(newest, file)
        os.replace(file.name, folder / FILE)
    return problem


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / f"{FILE}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _everything(path: Path) -> tuple[dict[str, list[dict[str, Any]]], str | None]:
    try:
        found = json.loads(path.read_text())
        for samples in found.values():
            for sample in samples:
                _require_sample(Sample(**sample))
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        return {}, f"{path} is damaged ({problem}): nothing is learned from it, and the next session replaces it"
    return found, None


def _require_sample(sample: Sample) -> None:
    for sizes in (sample.predicted, sample.corrected, sample.measured):
        if not sizes or not all(isinstance(size, int) for size in sizes.values()):
            raise ValueError("a session without its bytes by phase")
