"""What either side of benchmarks/trm.py does when it is told to: read a file of weights, be checked, take a step.

A file is in the form of the golden ones (`np.load`, no pickles): `config` (JSON), `param/` and `buffer/` with the
published names, `step0/batch/`; a golden one has the loss, the carry and the gradients of three steps besides.
Imports NumPy alone.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from peers.programs import resident_bytes, respond

LATENTS = ("z_H", "z_L")
WARM_STEPS = 2
Arrays = dict[str, np.ndarray]


class File:
    """Weights, and batches for them."""

    def __init__(self, path: str | Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays = dict(file)
        self.config: dict[str, Any] = json.loads(str(self.arrays["config"]))

    def under(self, prefix: str) -> Arrays:
        return below(self.arrays, prefix)


class Side(Protocol):
    """A model that takes supervision steps, its carry kept from one to the next. Numbers under published names."""

    def start(self, file: File) -> None:
        """All slots have halted."""

    def resume(self, carry: Arrays) -> None:
        """Resumes from a golden file's carry."""

    def step(self, batch: Arrays) -> float:
        """Forward and backward; waits until it is done. The loss, summed over the examples."""
        ...

    def gradients(self) -> Arrays:
        """Returns those of the last step; that of the rows of puzzles as `puzzle_rows`."""
        ...

    def carry(self) -> Arrays: ...


def serve(side: Side) -> None:
    """Answers `check`, `start`, `step` and `peak`."""
    batch: Arrays = {}

    def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["do"] == "check":
            return checked(side, File(asked["file"]))
        if asked["do"] == "start":
            file = File(asked["file"])
            batch.update(file.under("step0/batch/"))
            side.start(file)
            return {"losses": [side.step(batch) for _ in range(WARM_STEPS)]}
        if asked["do"] == "step":
            wall, cpu = time.perf_counter(), time.process_time()
            side.step(batch)
            return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        assert asked["do"] == "peak"
        return {"peak_bytes": resident_bytes("VmHWM")}

    respond(answer)


def checked(side: Side, golden: File) -> dict[str, float]:
    """The largest distance, norm of the difference over norm, from the file's losses, latents and gradients.

    The variant with `mlp_t` begins each step with the file's carry: its norm over positions magnifies rounding, and
    three chained steps in float32 are 9e-5 from float64, the file's own too (tests/recipes/puzzles/test_trm_golden.py).
    """
    side.start(golden)
    off = {"loss": 0.0, "latents": 0.0, "gradients": 0.0}

    def found(what: str, distance: float) -> None:
        off[what] = float(np.maximum(off[what], distance))  # NaN stays, and is near nothing

    for number in range(len({name.split("/")[0] for name in golden.arrays if name.startswith("step")})):
        told = golden.under(f"step{number}/")
        batch, carry, gradients = (below(told, name) for name in ("batch/", "carry/", "grad/"))
        gradients["puzzle_rows"] = told["grad_puzzle_rows"]
        found("loss", abs(side.step(batch) - float(told["loss"])) / abs(float(told["loss"])))
        reached, made = side.carry(), side.gradients()
        if made.keys() != gradients.keys():
            raise ValueError(f"gradients on one side only: {sorted(made.keys() ^ gradients.keys())}")
        for name in LATENTS:
            found("latents", distance(reached[name], carry[name]))
        for name, gradient in gradients.items():
            found("gradients", distance(made[name], gradient))
        if golden.config["mlp_t"]:
            side.resume(carry)
    return off


def below(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    if actual.shape != expected.shape:
        raise ValueError(f"an array of {actual.shape} where the file has {expected.shape}")
    apart = np.linalg.norm(actual.astype(np.float64) - expected)
    size = np.linalg.norm(expected.astype(np.float64))
    return float(apart / size if size else apart)
