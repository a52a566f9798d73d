"""Saves of two processes beside one's: the time, and what a process holds beside its state while it writes.

    python benchmarks/shared_saves.py [--mb 200] [--rounds 5]

A state of `--mb` that every process holds whole, as data-parallel training has it. One process saves it alone; two save
it together, each its parts; in turn, after a first save of each that is not counted. Goals: at most 64 MiB beside the
state, and at most 1.2 times one process's time. Writes bench-out/shared_saves.json.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from text_vs_trainer import conditions

MOST_BYTES, MOST_TIMES = 64 * 2**20, 1.2
CHILD = """
import json, sys, time
from pathlib import Path
number, count, port, folder, megabytes, saves = sys.argv[1:]
number, count, saves = int(number), int(count), int(saves)
import jax, numpy as np
from plimsoll.training import distributed
from plimsoll.training.checkpoint import Checkpoints
if count > 1:
    distributed.join(f"127.0.0.1:{port}", count, number)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("data",))
whole = NamedSharding(mesh, PartitionSpec())
size = int(megabytes) * 10**6 // 4 // 20
make = jax.jit(lambda key: [jax.random.normal(k, (size,)) for k in jax.random.split(key, 20)], out_shardings=whole)
state = jax.block_until_ready({"params": {str(at): leaf for at, leaf in enumerate(make(jax.random.key(0)))}})
folder = Path(folder)
checkpoints = Checkpoints(folder, in_background=False, shared=folder if count > 1 else None)

def resident(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

checkpoints.save(1, state, {})
rows = []
for step in range(2, 2 + saves):
    distributed.barrier("begin")
    Path("/proc/self/clear_refs").write_text("5")  # the largest so far begins anew
    before, start = resident("VmRSS"), time.monotonic()
    checkpoints.save(step, state, {})
    rows.append([time.monotonic() - start, resident("VmHWM") - before])
print(json.dumps(rows), flush=True)
if count > 1:
    distributed.leave()
"""


def saved(count: int, megabytes: int, saves: int) -> tuple[list[float], int]:
    """Returns the seconds of each save, the slowest process's, and the most bytes that one held beside its state."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        started = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, *map(str, (number, count, port, folder, megabytes, saves))],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        rows = [json.loads(each.communicate(timeout=600)[0].splitlines()[-1]) for each in started]
    slowest = [max(each[at][0] for each in rows) for at in range(saves)]
    return slowest, max(beside for each in rows for _, beside in each)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mb", type=int, default=200)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    beside = {1: 0, 2: 0}
    for _ in range(given.rounds):
        for count in seconds:
            took, bytes_beside = saved(count, given.mb, 2)
            seconds[count] += took
            beside[count] = max(beside[count], bytes_beside)
    times = statistics.median(seconds[2]) / statistics.median(seconds[1])
    out = Path("bench-out/shared_saves.json")
    out.parent.mkdir(exist_ok=True)
    found = {"conditions": conditions(given), "mb": given.mb, "seconds": seconds, "beside_bytes": beside}
    out.write_text(json.dumps(found | {"times": times}, indent=1))
    print(f"one process {statistics.median(seconds[1]):.2f} s, two {statistics.median(seconds[2]):.2f} s a save")
    print(f"{times:.2f} times one process's time (goal {MOST_TIMES})")
    most, alone = (f"{beside[count] / 2**20:.1f} MiB" for count in (2, 1))
    print(f"{most} beside the state at most (goal {MOST_BYTES / 2**20:.0f} MiB; one process {alone})")


if __name__ == "__main__":
    main()
