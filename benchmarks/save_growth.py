"""What every save leaves in the process: of our checkpoints by the number of their arrays, and of TensorStore alone.

    python benchmarks/save_growth.py [--arrays 2 20 100] [--saves 250]

TensorStore's Python module keeps a reference to every nested object of the JSON that it returns (`Spec.to_json()`,
`experimental_collect_matching_metrics`: 0.1.78 to 0.1.86). Orbax calls both, for each array of a save. Each in a
process of its own: KiB that the resident set grew by after the first saves, the heap trimmed.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

WARM = 15
"""Saves before the growth is counted: libraries import what they need."""
CALLS = 2_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--arrays", type=int, nargs="+", default=[2, 20, 100])
    options.add_argument("--saves", type=int, default=250)
    options.add_argument("--one", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one is not None:
        print(of_tensorstore() if given.one == "tensorstore" else of_saves(int(given.one), given.saves))
        return
    for one in ("tensorstore", *map(str, given.arrays)):
        command = [sys.executable, __file__, "--one", one, "--saves", str(given.saves)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        print(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout, end="")


def of_saves(arrays: int, saves: int) -> str:
    import numpy as np

    from plimsoll.training.checkpoint import Checkpoints

    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), in_background=False)
        state = {f"leaf {number}": np.zeros(100, np.float32) for number in range(arrays)}
        for step in range(WARM):
            checkpoints.save(step, state, {})
        before = _resident()
        for step in range(WARM, WARM + saves):
            checkpoints.save(step, state, {})
        return f"{arrays} arrays: {(_resident() - before) / saves / 1024:.1f} KiB a save, {saves} saves"


def of_tensorstore() -> str:
    import numpy as np
    import tensorstore

    with tempfile.TemporaryDirectory() as folder:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/array"}}
        store = tensorstore.open(spec, create=True, dtype=tensorstore.float32, shape=[10]).result()
        store[...] = np.zeros(10, np.float32)
        figures = {
            "Spec.to_json()": lambda: store.spec().to_json(),
            "collected metrics": lambda: tensorstore.experimental_collect_matching_metrics("/tensorstore/kvstore/"),
        }
        return "\n".join(f"TensorStore, {name}: {_each(call):.2f} KiB a call" for name, call in figures.items())


def _each(call: Callable[[], object]) -> float:
    for _ in range(100):
        call()
    before = _resident()
    for _ in range(CALLS):
        call()
    return (_resident() - before) / CALLS / 1024


def _resident() -> int:
    from plimsoll.training import memory

    gc.collect()
    memory.trim_heap()
    return memory.resident_bytes()


if __name__ == "__main__":
    main()
