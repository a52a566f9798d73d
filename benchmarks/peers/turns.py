"""What either side of benchmarks/optimizers.py does when it is told to: set up one optimizer, make an update.

Imports NumPy alone.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from peers.programs import resident_bytes, respond

LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01
ERROR_ELEMENTS, ERROR_STEPS = 2**20, 5
SPREADS = {"alike": 0.0, "spread": 1.0}
"""Of each element's magnitude: sigma of a lognormal, the same at every step."""


class Side(Protocol):
    """One optimizer, over a list of matrices."""

    def start(self, weights: Sequence[np.ndarray]) -> None: ...
    def give(self, gradients: Sequence[np.ndarray]) -> None: ...

    def update(self) -> None:
        """Updates, and waits until it is done."""

    def weights(self) -> list[np.ndarray]:
        """Returns what training has reached, in float32, with what is kept besides the weights."""
        ...

    def state_bytes(self) -> int:
        """Returns the bytes kept between updates, but for the weights."""
        ...

    def weight_bytes(self) -> int: ...

    def transient_bytes(self) -> int | None:
        """Returns what the compiler says; None where nobody does."""
        ...


def serve(side: Side) -> None:
    """Answers until standard input ends."""
    respond(lambda asked: _answer(side, asked))


def _answer(side: Side, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["do"] == "error":
        return {name: update_error(side, spread) for name, spread in SPREADS.items()}
    if asked["do"] == "start":
        random = np.random.default_rng(0)
        shapes = [tuple(shape) for shape in asked["shapes"]]
        side.start([0.02 * random.standard_normal(shape, np.float32) for shape in shapes])
        side.give([random.standard_normal(shape, np.float32) for shape in shapes])
        for _ in range(3):  # compiles, and touches everything it will keep
            side.update()
        return {
            "state_bytes": side.state_bytes(),
            "weight_bytes": side.weight_bytes(),
            "compiled_transient_bytes": side.transient_bytes(),
            "resident_transient_bytes": resident_transient(side),
        }
    wall, cpu = time.perf_counter(), time.process_time()
    side.update()
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def resident_transient(side: Side) -> int | None:
    """Returns by how much the resident set rises during an update, at its peak (Linux, where the peak can be reset)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = resident_bytes("VmRSS")
    side.update()
    return max(0, resident_bytes("VmHWM") - before)


def update_error(side: Side, spread: float) -> float:
    """After five updates: the norm of what the weights are off by, over that of the way AdamW in float64 takes."""
    random = np.random.default_rng(1)
    weights = (0.02 * random.standard_normal(ERROR_ELEMENTS)).astype(np.float32)
    scale = random.lognormal(sigma=spread, size=ERROR_ELEMENTS)
    exact, mean, variance = weights.astype(np.float64), 0.0, 0.0
    side.start([weights.reshape(1024, -1)])
    for step in range(1, ERROR_STEPS + 1):
        gradient = ((random.standard_normal(ERROR_ELEMENTS) + 0.3) * scale).astype(np.float32)
        side.give([gradient.reshape(1024, -1)])
        side.update()
        mean = BETA1 * mean + (1 - BETA1) * gradient.astype(np.float64)
        variance = BETA2 * variance + (1 - BETA2) * gradient.astype(np.float64) ** 2
        towards = mean / (1 - BETA1**step) / (np.sqrt(variance / (1 - BETA2**step)) + EPSILON)
        exact = exact - LEARNING_RATE * (towards + WEIGHT_DECAY * exact)
    reached = side.weights()[0].reshape(-1).astype(np.float64)
    return float(np.linalg.norm(reached - exact) / np.linalg.norm(exact - weights))
