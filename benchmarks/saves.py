"""Saves: the time and the memory of a save and of a restore, by size, and what many of them leave in a process.

    python benchmarks/saves.py sizes [--mb 15 200 2000] [--rounds 5] [--forms "one process" split]
    python benchmarks/saves.py growth [--steps 20000] [--save-every 250]

`sizes`: a state of so many MB, saved by one process, and by two together, each its parts: one that every process holds
whole, as data-parallel training has it, and one that is split between them (`fsdp`), written at once and in the
background. Each is read again in the place of the state. Of every process the seconds and the bytes beside the state;
forms in turn, after a first save of each that is not counted.

`growth`: a real training process of many tiny steps. Of windows of 500 steps the median of the resident set counts,
which the run writes itself; descriptors and threads are looked at from outside, in the first and the last quarter. What
the first save brings into the process, some 13 MiB of modules, stays. The cost of a save: the seconds of all steps
beside or right after it beyond those of an ordinary step.

Writes bench-out/saves-WHAT.json, and ends with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from measuring import ROOT, conditions, verdict, write
from training_process import ENVIRONMENT, MIB, PLIMSOLL

MOST_BYTES, MOST_TIMES = 64 * MIB, 1.2
"""Goals of `sizes`: beside the state, and two processes' time over one's."""
SAVES = 2
FORMS: dict[str, dict[str, Any]] = {
    "one process": {"processes": 1, "split": False, "background": False},
    "whole": {"processes": 2, "split": False, "background": False},
    "split": {"processes": 2, "split": True, "background": False},
    "split, in the background": {"processes": 2, "split": True, "background": True},
}
CHILD = """
import gc, json, sys, time
from pathlib import Path
number, port, folder, megabytes, saves, form = sys.argv[1:]
number, saves, form = int(number), int(saves), json.loads(form)
count = form["processes"]
import jax, numpy as np
from plimsoll.training import distributed, memory
from plimsoll.files.run_folder import RunFolder
from plimsoll.training.checkpoints import Checkpoints
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
own = sum(held_bytes(state).values())
checkpoints = Checkpoints(RunFolder(folder), in_background=form["background"])

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
(loaded, _), seconds, grown = beside(lambda: checkpoints.newest(like), "restore")
assert loaded.position.step == 1 + saves
for leaf, begun in zip(jax.tree.leaves(loaded.state), first, strict=True):
    np.testing.assert_array_equal(leaf.addressable_shards[0].data[:9], begun)
print(json.dumps({"saved": saved, "restored": [seconds, grown - own]}), flush=True)
if count > 1:
    distributed.leave()
"""

WINDOW = 500
"""Steps."""
MOST_MIB, MOST_SHARE = 12, 0.03
"""Goals of `growth`: at the end, and what of the time is spent on a save a minute."""
SAMPLE_SECONDS = 0.25
MODEL = "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4 --shuffle-buffer-size 50"
PLAN = "--memory 900MiB --micro-batch 4 --remat none --loss-chunk 0 --precision float32 --prefetch 1"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = options.add_subparsers(dest="kind", required=True)
    of_sizes = kinds.add_parser("sizes")
    of_sizes.add_argument("--mb", type=int, nargs="+", default=[15, 200, 2000])
    of_sizes.add_argument("--rounds", type=int, default=5)
    of_sizes.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    of_growth = kinds.add_parser("growth")
    of_growth.add_argument("--steps", type=int, default=20_000)
    of_growth.add_argument("--save-every", type=int, default=250, help="the first within the first window: it stays")
    of_growth.add_argument("--save-seconds", type=float, default=60.0, help="between saves, for their share of time")
    given = options.parse_args()
    return {"sizes": sizes, "growth": growth}[given.kind](given)


def sizes(given: argparse.Namespace) -> int:
    results, met = {}, True
    for megabytes in given.mb:
        results[str(megabytes)] = result = of_size(megabytes, given)
        met &= shown(megabytes, result)
    write(ROOT / "bench-out/saves-sizes.json", {"conditions": conditions(given), "sizes": results})
    return 0 if met else 1


def of_size(megabytes: int, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns of each form the seconds, of the slowest process, and the bytes beside the state of each."""
    rounds: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in given.forms}
    for _ in range(given.rounds):
        for name in given.forms:
            rounds[name].append(one_round(FORMS[name], megabytes))
    rows = {}
    for name, found in rounds.items():
        numbers = range(FORMS[name]["processes"])
        rows[name] = {
            "seconds": [max(each["saved"][at][0] for each in once) for once in found for at in range(SAVES)],
            "restore_seconds": [max(each["restored"][0] for each in once) for once in found],
            "beside_bytes": [max(size for once in found for _, size in once[n]["saved"]) for n in numbers],
            "restore_beside_bytes": [max(once[n]["restored"][1] for once in found) for n in numbers],
        }
    return rows


def one_round(form: dict[str, Any], megabytes: int) -> list[dict[str, Any]]:
    """Returns what each process measured: seconds and bytes beside its state, of every save and of reading it again."""
    from plimsoll.processes.environment import for_several

    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
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


def shown(megabytes: int, rows: dict[str, dict[str, Any]]) -> bool:
    """Prints the rows of a size, and returns whether they meet the goals."""
    print(f"a state of {megabytes} MB; MiB beside it by process, while it is saved and while it is read")
    for name, row in rows.items():
        saved, read = (
            " and ".join(f"{size / MIB:.1f}" for size in row[which])
            for which in ("beside_bytes", "restore_beside_bytes")
        )
        seconds = [median(row[which]) for which in ("seconds", "restore_seconds")]
        print(f"{name:26} saved {saved} MiB, {seconds[0]:.2f} s; read {read} MiB, {seconds[1]:.2f} s", flush=True)
    most = max(size for row in rows.values() for size in [*row["beside_bytes"], *row["restore_beside_bytes"]])
    met = most <= MOST_BYTES
    print(f"{most / MIB:.1f} MiB beside the state at most (goal {MOST_BYTES / MIB:.0f} MiB: {verdict(met=met)})")
    if {"whole", "one process"} <= rows.keys():
        times = median(rows["whole"]["seconds"]) / median(rows["one process"]["seconds"])
        print(f"{times:.2f} times one process's time (goal {MOST_TIMES}: {verdict(met=times <= MOST_TIMES)})")
        met &= times <= MOST_TIMES
    return met


def growth(given: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="plimsoll-growth-") as folder:
        found = measured(given, Path(folder))
    write(ROOT / "bench-out/saves-growth.json", {"conditions": conditions(given)} | found)
    print(words(found))
    return 0 if found["sound"] else 1


def measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    run, text = folder / "run", folder / "text.txt"
    drawn = random.Random(0)
    text.write_text("\n\n".join(" ".join(drawn.choices("abcdefgh", k=60)) for _ in range(2000)))
    length = f"--steps {given.steps} --save-every {given.save_every} --eval-every 0 --log-every 10"
    command = [*PLIMSOLL, "train", "stories", "--dataset-id", str(text), *f"{MODEL} {PLAN} {length} --quiet".split()]
    process = subprocess.Popen(
        [*command, "--run", str(run)], env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    samples = sampled(process, run)
    if process.returncode:
        raise SystemExit(f"training ended with code {process.returncode}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    saves = [int(line.split()[-1]) for line in (run / "log.txt").read_text().splitlines() if "saved step" in line]
    return judged(samples, [row for row in rows if "loss" in row], saves, given)


def sampled(process: subprocess.Popen[Any], run: Path) -> list[tuple[int, int, int]]:
    """Returns of the training process its last step that is written, its descriptors and its threads."""
    found = []
    while process.poll() is None:
        time.sleep(SAMPLE_SECONDS)
        try:
            if b"plimsoll.worker" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                continue
            descriptors, threads = (len(os.listdir(f"/proc/{process.pid}/{kind}")) for kind in ("fd", "task"))
            found.append((last_step(run), descriptors, threads))
        except OSError:
            continue
    return found


def last_step(run: Path) -> int:
    try:
        with open(run / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 2000))
            whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return json.loads(whole)["step"] if whole else 0
    except (OSError, ValueError, KeyError):
        return 0


def judged(
    samples: Sequence[tuple[int, int, int]], rows: list[Any], saves: list[int], given: argparse.Namespace
) -> dict[str, Any]:
    """Returns resident bytes by window, what grew, and what a save costs."""
    windows: dict[int, list[int]] = {}
    for row in rows:
        windows.setdefault((row["step"] - 1) // WINDOW, []).append(row["resident_bytes"])
    resident = {number * WINDOW: median(values) for number, values in sorted(windows.items())}
    after = [value for first, value in resident.items() if first >= WINDOW]
    whole = [sample for sample in samples if WINDOW <= sample[0] < given.steps - WINDOW]
    quarters = whole[: len(whole) // 4], whole[-(len(whole) // 4) :]
    descriptors, threads = ([median(one[which] for one in quarter) for quarter in quarters] for which in (1, 2))
    seconds = cost_of_a_save(rows, saves)
    grown, share = after[-1] - after[0], seconds / given.save_seconds
    level = descriptors[0] == descriptors[1] and threads[0] == threads[1]
    return {
        "steps": given.steps,
        "resident_bytes_by_window": resident,
        "growth_bytes": grown,
        "most_growth_bytes": max(after) - after[0],
        "descriptors": descriptors,
        "threads": threads,
        "saves": len(saves),
        "seconds_per_save": seconds,
        "share_of_saving": share,
        "sound": grown <= MOST_MIB * MIB and level and share <= MOST_SHARE,
    }


def cost_of_a_save(rows: list[Any], saves: list[int]) -> float:
    """Elapsed seconds between two rows with a save between them beyond those of rows without, in the median."""
    pairs = [(a["step"], b["step"], b["elapsed_seconds"] - a["elapsed_seconds"]) for a, b in pairwise(rows)]
    ordinary = median(took for first, last, took in pairs if not any(first <= step <= last for step in saves))
    of_save: dict[int, float] = {}
    for first, last, took in pairs:
        for step in saves:
            if first <= step <= last:
                of_save[step] = of_save.get(step, 0.0) + took - ordinary
    assert of_save, "no save lies between two rows"
    return max(0.0, median(of_save.values()))


def words(found: dict[str, Any]) -> str:
    level = verdict(met=found["growth_bytes"] <= MOST_MIB * MIB)
    cheap = verdict(met=found["share_of_saving"] <= MOST_SHARE)
    windows = list(found["resident_bytes_by_window"].items())
    some = [windows[at] for at in sorted({*range(0, len(windows), max(1, len(windows) // 8)), len(windows) - 1})]
    return "\n".join(
        [
            *(
                f"from step {first:>6,}: {value / MIB:7.1f} MiB resident (median of {WINDOW} steps)"
                for first, value in some
            ),
            f"growth after the first {WINDOW} steps: {found['growth_bytes'] / MIB:+.1f} MiB at the end,"
            f" {found['most_growth_bytes'] / MIB:+.1f} MiB at most (goal {MOST_MIB}: {level})",
            f"descriptors {found['descriptors']}, threads {found['threads']}: first and last quarter",
            f"a save costs {found['seconds_per_save'] * 1e3:.0f} ms ({found['saves']} of them):"
            f" {found['share_of_saving']:.2%} of the time at one a minute (goal {MOST_SHARE:.0%}: {cheap})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
