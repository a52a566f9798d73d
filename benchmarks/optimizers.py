"""AdamW's update beside its peers: bytes kept, bytes while it runs, time, and how far it is off.

    python benchmarks/optimizers.py [--rounds 15] [--sides optax plimsoll-8 bitsandbytes-8]
    python benchmarks/optimizers.py --curves [--steps 200] [--seeds 0 1]

Each side is a program of its own that waits for its turn (benchmarks/peers/turns.py), torch's in an environment of its
own; updates are timed in turn, and ratios are of medians, to optax. "resident" is how much the resident set rises
during an update, "compiled" what XLA says it needs; "alike" and "spread" are errors of the way the weights have moved
after five updates, with gradients of one magnitude and of a lognormal one (sigma 1). Prints a table for each set of
leaves and writes bench-out/optimizers.json.

With --curves it trains our optimizers instead, at equal steps on Python's own library (benchmarks/curves.py), and
writes bench-out/optimizer_curves.json.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import curves
from measuring import conditions, verdict, write
from peers.environment import OPTIMIZERS, OPTIMIZERS_FOLDER, ROOT, SIDE_PROGRAM, peer_python
from peers.programs import Program

LEAVES = {"one of 16.8M": [[4096, 4096]], "40 of 0.4M": [[640, 640]] * 40}
OURS = ("optax", "plimsoll-8", "plimsoll-8-w24", "plimsoll-8-w16")
PEERS = ("torch-fused", "bitsandbytes-8", "torchao-8", "torchao-4", "torchao-8-w16")
GOALS = {"state": 2.15, "transient": 0.35, "time": {"one of 16.8M": 1.8, "40 of 0.4M": 2.2}, "of bitsandbytes": 0.5}
"""Of plimsoll-8, at most: bytes per parameter kept and while it runs, time over optax's, time over bitsandbytes'."""


def started(name: str, *, threads: int) -> Program:
    """A side in its own process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "OMP_NUM_THREADS": str(threads)}
    if name in OURS:
        command = [sys.executable, SIDE_PROGRAM, "ours_optimizers", name]
    else:
        python = peer_python(OPTIMIZERS_FOLDER, OPTIMIZERS)
        command = [str(python), SIDE_PROGRAM, "peers.optimizers", name, f"--threads={threads}"]
    return Program(name, command, environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sides", nargs="+", choices=OURS + PEERS, default=OURS + PEERS, metavar="SIDE")
    parser.add_argument("--leaves", nargs="+", choices=LEAVES, default=list(LEAVES), metavar="LEAVES")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/optimizers.json")
    parser.add_argument("--curves", action="store_true", help="train our optimizers on text instead")
    parser.add_argument("--steps", type=int, default=200, help="of each curve")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of each curve")
    options = parser.parse_args()
    if options.curves:
        return curves.measure(options)
    sides = [started(name, threads=options.threads) for name in options.sides]
    errors = {side.name: side.ask(do="error") for side in sides}
    results = {}
    for leaves in options.leaves:
        results[leaves] = measured(sides, LEAVES[leaves], rounds=options.rounds, errors=errors)
        print(table(leaves, results[leaves]), flush=True)
    for side in sides:
        side.end()
    write(options.out, {"conditions": conditions(options), "results": results})
    return 0


def measured(sides: list[Program], shapes: list[list[int]], *, rounds: int, errors: dict) -> dict[str, dict]:
    """Side to figures, per parameter where they are bytes."""
    parameters = sum(rows * cols for rows, cols in shapes)
    rows = {}
    for side in sides:
        bytes_of = side.ask(do="start", shapes=shapes)
        per = {name: None if count is None else count / parameters for name, count in bytes_of.items()}
        rows[side.name] = per | {"errors": errors[side.name], "seconds": [], "cpu_seconds": []}
    for _ in range(rounds):  # A B C A B C
        for side in sides:
            took = side.ask(do="update")
            for name, value in took.items():
                rows[side.name][name].append(value)
    return rows


def table(leaves: str, rows: dict[str, dict]) -> str:
    head = (
        "B/param:",
        "weights",
        "state",
        "resident",
        "compiled",
        "ms",
        "best",
        "CPU ms",
        "x optax",
        "alike",
        "spread",
    )
    lines = [f"{leaves:16}" + "".join(f"{name:>10}" for name in head)]
    base = statistics.median(rows["optax"]["seconds"]) if "optax" in rows else None
    for name, row in rows.items():
        median = statistics.median(row["seconds"])
        cells = [
            *(
                "" if row[key] is None else f"{row[key]:.3f}"
                for key in ("weight_bytes", "state_bytes", "resident_transient_bytes", "compiled_transient_bytes")
            ),
            f"{1e3 * median:.1f}",
            f"{1e3 * min(row['seconds']):.1f}",
            f"{1e3 * statistics.median(row['cpu_seconds']):.1f}",
            f"{median / base:.2f}" if base else "",
            *(f"{row['errors'][spread]:.4f}" for spread in ("alike", "spread")),
        ]
        lines.append(f"  {name:24}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join([*lines, *goals(leaves, rows)])


def goals(leaves: str, rows: dict[str, dict]) -> list[str]:
    """Returns what plimsoll-8 set out to reach, and whether it did."""
    if "plimsoll-8" not in rows:
        return []
    ours, time = rows["plimsoll-8"], lambda name: statistics.median(rows[name]["seconds"])
    found = {
        "state": (ours["state_bytes"], GOALS["state"]),
        "compiled transient": (ours["compiled_transient_bytes"], GOALS["transient"]),
    }
    if "optax" in rows:
        found["time over optax's"] = (time("plimsoll-8") / time("optax"), GOALS["time"][leaves])
    if "bitsandbytes-8" in rows:
        found["time over bitsandbytes'"] = (time("plimsoll-8") / time("bitsandbytes-8"), GOALS["of bitsandbytes"])
    return [
        f"  goal: {name} {value:.3f}, at most {goal:g}: {verdict(met=value <= goal)}"
        for name, (value, goal) in found.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
