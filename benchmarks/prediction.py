"""Predicted against measured peak of whole training processes: how far the planner's bytes are from the kernel's.

    python benchmarks/prediction.py --text TEXT.txt [--runs 3] [--only 4]

Every configuration is planned and trained by the command line, `--runs` times, each time in a process of its own with
an evaluation and two saves in it; the largest `VmHWM` counts. Prints one table, writes one JSON to bench-out/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 2**20
SMALL = ["--width", "128", "--layers", "4", "--heads", "4", "--vocab-size", "4096"]
LARGE = ["--width", "384", "--layers", "6", "--heads", "6", "--vocab-size", "4096"]
CONFIGURATIONS = [
    # name, model, sequence length, batch, budgets in MiB, numerics
    ("small", SMALL, 64, 64, (430, 600, 900), "mixed"),
    ("small", SMALL, 128, 64, (430, 600, 900), "mixed"),
    ("small", SMALL, 256, 32, (430, 600, 900), "mixed"),
    ("small", SMALL, 512, 16, (430, 600, 900), "exact"),
    ("large", LARGE, 64, 64, (600, 800, 1200), "mixed"),
    ("large", LARGE, 256, 16, (600, 800, 1200), "mixed"),
    ("large", LARGE, 512, 8, (600, 800, 1200), "exact"),
]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--text", default="../shared/data/text/tinystories_train.txt")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--only", type=int, nargs="*", help="numbers of the configurations to run")
    options.add_argument("--budgets", type=int, nargs="*", help="0, 1, 2: which of the three budgets")
    given = options.parse_args()
    cases = [
        (number, name, model, length, batch, budget, numerics)
        for number, (name, model, length, batch, budgets, numerics) in enumerate(CONFIGURATIONS)
        for at, budget in enumerate(budgets)
        if (given.only is None or number in given.only) and (given.budgets is None or at in given.budgets)
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            rows.append(one(given, Path(folder), *case))
            print(line(rows[-1]), flush=True)
    report(rows)


def one(given, folder: Path, number, name, model, length, batch, budget, numerics) -> dict:
    label = f"{name}-{length}-{budget}"
    command = [
        sys.executable, "-m", "plimsoll.cli.main", "train", "stories", "--dataset-id", given.text, *model,
        "--seq-len", str(length), "--batch-size", str(batch), "--steps", str(given.steps), "--memory", f"{budget}MiB",
        "--numerics", numerics, "--save-every", str(given.steps // 2), "--eval-every", str(given.steps // 2),
        "--shuffle-buffer-size", "1000", "--quiet",
    ]  # fmt: skip
    row = {"configuration": label, "number": number, "budget": budget, "numerics": numerics}
    peaks = []
    for time in range(given.runs):
        run = folder / f"{label}-{time}"
        plan = ["--plan", str(folder / f"{label}-0" / "plan.json")] if time else []
        done = subprocess.run([*command, "--run", str(run), *plan], capture_output=True, text=True, check=False)
        if done.returncode:
            return row | {"refused": done.stderr.strip().splitlines()[:2]}
        ledger = json.loads((run / "ledger.json").read_text())
        peaks.append(ledger["measured"]["peak_bytes"])
    planned = json.loads((folder / f"{label}-0" / "plan.json").read_text())
    lever = planned["plan"]
    return row | {
        "plan": f"{lever['micro_batch']}x{lever['accumulation']} {lever['remat']} {lever['loss_chunk']}"
        f" {lever['precision'][:1]}{'a' if lever['async_save'] else 's'}",
        "phase": ledger["phase"],
        "phases": ledger["predicted"]["phases"],
        "components": ledger["components"],
        "predicted": ledger["predicted"]["peak_bytes"],
        "measured": max(peaks),
        "spread": max(peaks) - min(peaks),
    }


def line(row: dict) -> str:
    if "refused" in row:
        return f"{row['configuration']:16} refused: {' '.join(row['refused'])[:110]}"
    predicted, measured = row["predicted"] / MIB, row["measured"] / MIB
    error = predicted - measured
    return (
        f"{row['configuration']:16} {row['plan']:22} {row['phase']:9} predicted {predicted:7.1f} measured"
        f" {measured:7.1f} (spread {row['spread'] / MIB:4.1f})  error {error:+6.1f} MiB {error / measured:+6.1%}"
        f"  {'OVER THE BUDGET' if measured > row['budget'] else ''}"
    )


def report(rows: list[dict]) -> None:
    seen = [row for row in rows if "measured" in row]
    errors = [abs(row["predicted"] - row["measured"]) for row in seen]
    shares = [error / row["measured"] for error, row in zip(errors, seen, strict=True)]
    under = [row for row in seen if row["predicted"] < row["measured"] - max(0.02 * row["measured"], 8 * MIB)]
    over = [row for row in seen if row["measured"] > row["budget"] * MIB]
    print(f"\n{len(seen)} configurations, {len(rows) - len(seen)} refused")
    print(f"median error {statistics.median(errors) / MIB:.1f} MiB, {statistics.median(shares):.1%}")
    print(f"worst error {max(errors) / MIB:.1f} MiB, {max(shares):.1%}")
    print(f"under-predicted by more than the larger of 2 % and 8 MiB: {len(under)}; over budget: {len(over)}")
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "prediction.json").write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
