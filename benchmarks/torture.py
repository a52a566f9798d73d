"""Runs that cannot be broken: random faults against real `plimsoll train` processes, until time or number is up.

    python benchmarks/torture.py --minutes 25 --seed 1 [--faults 200] [--resume]

Runs of tiny recipes (a text, an HDF5 file, a recipe file of one's own) are killed, told to stop, frozen, squeezed, left
without disk and without data, given jumping clocks, and their files are damaged; after each fault the same command
continues. A run's last state must have the fingerprint of an undisturbed one, and every step its loss; one that was
planned again may be CLOSE to it.

Where it may mount, the disk is a tmpfs of its own, else RLIMIT_FSIZE; where it may make control groups, memory is
squeezed in one. Every fault and run is a row of bench-out/torture.jsonl; with --resume the rows that are there count,
and the runs go on being numbered from there. Ends with 1 if a run was lost, a step silently different, or anything else
not as it should be.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from torture_faults import Life, copy_for_inspection, result
from torture_run import Learned, Tortured
from torture_world import STEPS, Course, World

OF_TRAINING = ("checkpoints", "metrics.jsonl", "log.txt", "ledger.json")
ORDER = ("stories", "control", "stories", "mine")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=25)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--faults", type=int, help="stop after so many, however many minutes are left")
    options.add_argument("--recipes", nargs="*", default=ORDER, choices=sorted({*ORDER}))
    options.add_argument("--resume", action="store_true")
    options.add_argument("--out", type=Path, default=Path("bench-out/torture.jsonl"))
    given = options.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and so would every run
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if not given.resume:
        given.out.unlink(missing_ok=True)
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    with tempfile.TemporaryDirectory(prefix="plimsoll-torture-") as folder, World(Path(folder)) as world:
        print(f"disk: {world.said['disk']}; memory: {world.said['memory']}", flush=True)
        try:
            torture(world, given, rows)
        except KeyboardInterrupt:
            print("interrupted: what follows is of the runs that were finished")
        for kept in world.scratch.glob("trouble-*"):
            shutil.copytree(kept, given.out.parent / f"torture-{kept.name}", dirs_exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps(result(rows, given), indent=1))
    print(table(rows))
    return 0 if sound(rows) else 1


def torture(world: World, given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    first = 1 + max((row["run"] for row in rows), default=0)
    undisturbed = {name: prepared(world, world.courses[name]) for name in dict.fromkeys(given.recipes)}
    deadline = time.monotonic() + given.minutes * 60

    def over() -> bool:
        faults = sum("fault" in row for row in rows)
        return time.monotonic() >= deadline or (given.faults is not None and faults >= given.faults)

    with open(given.out, "a") as file:

        def keep(row: dict[str, Any]) -> None:
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(words_of(row), flush=True)

        for number, name in zip(itertools.count(first), itertools.cycle(given.recipes), strict=False):
            if over():
                return
            run, learned = undisturbed[name]
            drawn = random.Random(f"{given.seed} {number}")
            tortured = Tortured(world, world.courses[name], run, learned, number, drawn)
            for row in tortured.through_faults(over):
                keep(row)
            keep(tortured.finish())


def prepared(world: World, course: Course) -> tuple[Path, Learned]:
    """A run that is planned and has taken no step; and what it learns when nobody disturbs it."""
    run, fresh = world.runs / f"undisturbed-{course.name}", world.scratch / f"prepared-{course.name}"
    begun = time.monotonic()
    ended = Life(world, course, run).end()
    if ended.code != 0:
        copy_for_inspection(run, world.scratch / f"trouble-{course.name}")
        raise SystemExit(f"{course.name} does not even train undisturbed (code {ended.code}): {ended.err}{ended.out}")
    learned = Learned.of(run)
    shutil.copytree(run, fresh)
    for path in fresh.iterdir():
        if path.name in OF_TRAINING or path.name.startswith(("events.out", ".")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(run)
    print(
        f"{course.name}: {STEPS} steps undisturbed in {time.monotonic() - begun:.0f} s: {learned.digest[:16]}",
        flush=True,
    )
    return fresh, learned


def words_of(row: dict[str, Any]) -> str:
    if "fault" in row:
        code = f" -> {row['code']}" if "code" in row else ""
        return f"  run {row['run']} ({row['recipe']}), step {row['at']}: {row['fault']}, {row['did']}{code}"
    state = "LOST" if row["lost"] else f"finished, {row['steps_different']} steps different"
    apart = f", {row['distance']:.1e} apart" if "distance" in row else ""
    lived = f"{row['faults']} faults, {row['lives']} lives"
    return f"run {row['run']} ({row['recipe']}): {lived}, {state}{apart} {row['troubles'] or ''}"


def table(rows: list[dict[str, Any]]) -> str:
    """Faults by kind, with the codes that processes ended with; then the runs."""
    faults, runs = [row for row in rows if "fault" in row], [row for row in rows if "fault" not in row]
    lines = [f"{'fault':<28}{'times':>6}   ended with"]
    for kind, times in sorted(Counter(row["fault"] for row in faults).items()):
        codes = Counter(row["code"] for row in faults if row["fault"] == kind and "code" in row)
        said = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items(), key=lambda pair: -pair[1]))
        lines.append(f"{kind:<28}{times:>6}   {said or 'seen by the next process'}")
    again = [row["distance"] for row in runs if "distance" in row]
    lines += [
        f"{'together':<28}{len(faults):>6}   {sum(row['lives'] for row in runs)} processes, {len(runs)} runs",
        f"runs lost: {sum(row['lost'] for row in runs)}",
        f"steps silently different: {sum(row['steps_different'] for row in runs)}",
        f"same fingerprint: {sum(row.get('fingerprint_same', False) for row in runs)} of {len(runs) - len(again)}",
    ]
    if again:
        lines.append(f"planned again: {len(again)} runs, parameters at most {max(again):.1e} apart")
    troubles = [f"run {row['run']}: {trouble}" for row in runs for trouble in row["troubles"]]
    return "\n".join([*lines, f"other troubles: {len(troubles)}", *troubles])


def sound(rows: list[dict[str, Any]]) -> bool:
    runs = [row for row in rows if "fault" not in row]
    return bool(runs) and not any(row["lost"] or row["steps_different"] or row["troubles"] for row in runs)


if __name__ == "__main__":
    sys.exit(main())
