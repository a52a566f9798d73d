"""Saves of two processes beside one's: the time, and what a process holds beside its state while it writes and reads.

    python benchmarks/shared_saves.py [--mb 200] [--rounds 5]

A state of `--mb`, saved together, each process its parts: one that every process holds whole, as data-parallel training
has it, and one that is split between them (`fsdp`), written at once and in the background; and the split one where the
second process does not see the folder, so that the first gathers and writes all of it. Each is read again in the place
of the state. One process saves the first alone; in turn, after a first save of each that is not counted. Goals: at most
64 MiB beside the state, but for the process that gathers it, and at most 1.2 times one process's time. Writes
bench-out/shared_saves.json.
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
from typing import Any

from goals import verdict
from text_vs_trainer import conditions

from plimsoll.processes.environment import for_several

MOST_BYTES, MOST_TIMES = 64 * 2**20, 1.2
SAVES = 2
FORMS: dict[str, dict[str, Any]] = {
    "one process": {"processes": 1, "split": False, "background": False, "seen": True},
    "whole": {"processes": 2, "split": False, "background": False, "seen": True},
    "split": {"processes": 2, "split": True, "background": False, "seen": True},
    "split, in the background": {"processes": 2, "split": True, "background": True, "seen": True},
    "split, not seen by all": {"processes": 2, "split": True, "background": False, "seen": False},
}
CHILD = """
import gc, json, sys, time
from pathlib import Path
number, port, folder, megabytes, saves, form = sys.argv[1:]
number, saves, form = int(number), int(saves), json.loads(form)
count = form["processes"]
import jax, numpy as np
from plimsoll.training import distributed, memory
from plimsoll.training.checkpoint import Checkpoints
from plimsoll.training.program import held_bytes
if count > 1:
    distributed.join(f"127.0.0.1:{port}", count, number)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("all",))
sharding = NamedSharding(mesh, PartitionSpec("all") if form["split"] else PartitionSpec())
size = int(megabytes) * 10**6 // 4 // 20 // 2 * 2
make = jax.jit(lambda key: [jax.random.normal(k, (size,)) for k in jax.random.split(key, 20)], out_shardings=sharding)
state = jax.block_until_ready({"params": {str(at): leaf for at, leaf in enumerate(make(jax.random.key(0)))}})
like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
first = [np.asarray(leaf.addressable_shards[0].data[:9]) for leaf in jax.tree.leaves(state)]
own, folder = sum(held_bytes(state).values()), Path(folder)
shared = folder if count > 1 and form["seen"] else None
checkpoints = Checkpoints(folder, in_background=form["background"], shared=shared)

def beside(act, place):
    distributed.barrier(place)
    gc.collect()
    memory.trim()
    memory.settle(patience=1.0)
    Path("/proc/self/clear_refs").write_text("5")  # the largest so far begins anew
    before, start = memory.resident_bytes(), time.monotonic()
    result = act()
    seconds = time.monotonic() - start
    return result, seconds, memory.peak_resident_bytes() - before

def save(step):
    checkpoints.save(step, state, {})
    checkpoints.wait()

save(1)
saved = [beside(lambda: save(step), "save")[1:] for step in range(2, 2 + saves)]
jax.tree.map(lambda leaf: leaf.delete(), state)
(step, state, _, _), seconds, grown = beside(lambda: checkpoints.newest(like), "restore")
assert step == 1 + saves
for leaf, begun in zip(jax.tree.leaves(state), first, strict=True):
    np.testing.assert_array_equal(leaf.addressable_shards[0].data[:9], begun)
print(json.dumps({"saved": saved, "restored": [seconds, grown - own]}), flush=True)
if count > 1:
    distributed.leave()
"""


def measured(form: dict[str, Any], megabytes: int) -> list[dict[str, Any]]:
    """Returns what each process measured: seconds and bytes beside its state, of every save and of reading it again."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = [port, folder, megabytes, SAVES, json.dumps(form)]
        started = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, *map(str, (number, *words))],
                env=for_several("cpu"),  # a training process's, whose resident memory follows its arrays
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(form["processes"])
        ]
        return [json.loads(each.communicate(timeout=600)[0].splitlines()[-1]) for each in started]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mb", type=int, default=200)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    rounds: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in FORMS}
    for _ in range(given.rounds):
        for name, form in FORMS.items():
            rounds[name].append(measured(form, given.mb))
    rows = {}
    for name, form in FORMS.items():
        numbers = range(form["processes"])
        slowest = [max(each["saved"][at][0] for each in found) for found in rounds[name] for at in range(SAVES)]
        rows[name] = {
            "seconds": slowest,
            "restore_seconds": [max(each["restored"][0] for each in found) for found in rounds[name]],
            "beside_bytes": [max(beside for found in rounds[name] for _, beside in found[n]["saved"]) for n in numbers],
            "restore_beside_bytes": [max(found[n]["restored"][1] for found in rounds[name]) for n in numbers],
        }
    times = statistics.median(rows["whole"]["seconds"]) / statistics.median(rows["one process"]["seconds"])
    out = Path("bench-out/shared_saves.json")
    out.parent.mkdir(exist_ok=True)
    found = {"conditions": conditions(given), "mb": given.mb, "times": times, "rows": rows}
    out.write_text(json.dumps(found, indent=1))
    print(f"a state of {given.mb} MB; MiB beside it by process, while it is saved and while it is read")
    for name, row in rows.items():
        saved, read = (
            " and ".join(f"{size / 2**20:.1f}" for size in row[which])
            for which in ("beside_bytes", "restore_beside_bytes")
        )
        seconds = [statistics.median(row[which]) for which in ("seconds", "restore_seconds")]
        print(f"{name:26} saved {saved} MiB, {seconds[0]:.2f} s; read {read} MiB, {seconds[1]:.2f} s")
    most = max(
        size
        for name, row in rows.items()
        for size in [*row["beside_bytes"][not FORMS[name]["seen"] :], *row["restore_beside_bytes"]]
    )
    verdicts = [verdict(met=met) for met in (most <= MOST_BYTES, times <= MOST_TIMES)]
    print(f"{most / 2**20:.1f} MiB beside the state at most (goal {MOST_BYTES / 2**20:.0f} MiB: {verdicts[0]})")
    print(f"{times:.2f} times one process's time (goal {MOST_TIMES}: {verdicts[1]})")


if __name__ == "__main__":
    main()
