"""What either side of benchmarks/trm.py does when it is told to: read a file of weights, take a step.

A file (`np.load`, no pickles) holds `config` (JSON), `param/` and `buffer/` with the published names, `step0/batch/`.
Imports NumPy alone.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from peers.programs import resident_bytes, respond

WARM_STEPS = 2
Arrays = dict[str, np.ndarray]


class File:
    """Weights, and batches for them."""

    def __init__(self, path: str | Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays = dict(file)
        self.config: dict[str, Any] = json.loads(str(self.arrays["config"]))

    def under(self, prefix: str) -> Arrays:
        return {name.removeprefix(prefix): value for name, value in self.arrays.items() if name.startswith(prefix)}


class Side(Protocol):
    """A model that takes supervision steps, its carry kept from one to the next. Numbers under published names."""

    def start(self, file: File) -> None:
        """All slots have halted."""

    def step(self, batch: Arrays) -> float:
        """Forward and backward; waits until it is done. The loss, summed over the examples."""
        ...


def serve(side: Side) -> None:
    """Answers `start`, `step` and `peak`."""
    batch: Arrays = {}

    def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
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
