"""How long a plan takes: recipes, chips and budgets drawn with a seed, the first time and from the cache.

    python benchmarks/plan_time.py [--seed 1] [--count 24]

Half of the budgets are within 20 % of the floor, which `plan --floor` finds in a cache of its own. Commands whose time
is measured begin with an empty cache, one after another. A chip whose compile environment is not here is estimated.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import verdict
from training_process import ENVIRONMENT, PLIMSOLL

RECIPES: list[list[str]] = [
    ["code"],
    ["stories", "--target-params", "10M", "--batch-size", "64"],
    ["sudoku-4x4", "--batch-size", "128"],
    ["sudoku-mlp", "--batch-size", "128"],
    ["longcontext-nano", "--seq-len", "2048", "--batch-size", "32"],
    ["recommend-debug"],
]
CHIPS = ("cpu", "cpu", "h100", "a100-40", "rtx4090", "t4", "tpu-v5e-8", "tpu-v4-64")
GOALS = {"cpu": 10.0, "elsewhere": 15.0}
"""Seconds of the median, cold."""
WORST, AGAIN = 60.0, 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=24)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    rows = []
    with tempfile.TemporaryDirectory() as floors:
        while len(rows) < options.count:
            words = [*dice.choice(RECIPES), "--chip", dice.choice(CHIPS)]
            near = len(rows) % 2 == 0
            share = dice.uniform(1.0, 1.2) if near else dice.uniform(1.2, 8.0)
            floor, _ = took([*words, "--floor"], floors)
            if not floor.get("fits"):
                print(f"{' '.join(words)}: {floor.get('reason', 'no floor')}", flush=True)
                continue
            needed = floor["predicted_peak_bytes"] + floor["spare_bytes"]
            rows.append(row(words, int(share * needed), share))
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "plan-time.json").write_text(json.dumps(rows, indent=2))
    met = True
    for where, goal in GOALS.items():
        seconds = [each["first_seconds"] for each in rows if (each["chip"] == "cpu") == (where == "cpu")]
        if seconds:
            median, worst = statistics.median(seconds), max(seconds)
            here = median <= goal and worst <= WORST
            goals = f"goals {goal:.0f} and {WORST:.0f}: {verdict(met=here)}"
            print(f"{where}: median {median:.1f} s, worst {worst:.1f} s ({goals})")
            met &= here
    again = max(each["again_seconds"] for each in rows)
    print(f"from the cache, worst: {again:.2f} s (goal {AGAIN}: {verdict(met=again <= AGAIN)})")
    return 0 if met and again <= AGAIN else 1


def row(words: list[str], budget: int, share: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        asked = [*words, "--memory", str(budget)]
        found, first = took(asked, cache)
        _, again = took(asked, cache)
    fits, compiles = bool(found.get("fits")), found.get("compiles", 0)
    print(
        f"{' '.join(words):70} {share:4.2f} x floor  first {first:5.1f} s, again {again:5.2f} s, {compiles} compiles,"
        f" {'fits' if fits else 'refused'}",
        flush=True,
    )
    return {
        "words": words, "chip": words[-1], "budget_bytes": budget, "times_the_floor": share, "first_seconds": first,
        "again_seconds": again, "compiles": compiles, "fits": fits,
    }  # fmt: skip


def took(words: list[str], cache: str) -> tuple[dict[str, Any], float]:
    """Returns what the whole command printed as JSON, and its seconds."""
    command = [*PLIMSOLL, "plan", *words, "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, env=ENVIRONMENT | {"PLIMSOLL_CACHE": cache}, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if not done.stdout.strip():
        return {"reason": done.stderr.strip().splitlines()[-1]}, seconds
    return json.loads(done.stdout), seconds


if __name__ == "__main__":
    sys.exit(main())
