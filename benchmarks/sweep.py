"""The chosen plan against an exhaustive sweep: how far from the fastest plan that fits is what the planner chose?

    python benchmarks/sweep.py [--recipes 0 1]

For each recipe every combination of micro-batch, rematerialisation, loss chunk and precision is pinned, and planned and
timed by `plimsoll plan --measure`. Then for each budget the planner chooses by itself, and its choice is timed in turn
(A B C A B C) with the fastest of the sweep that the planner takes under that budget: the least of fifty times from
different minutes is as much luck as speed. Every timing has a cache of its own. Goal: at most 10 % slower.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring import ROOT, write
from training_process import ENVIRONMENT, MIB, PLIMSOLL, plan_words

TEXT = "data/text/tinystories_train.txt"
GOAL = 1.10
RIVALS = 5
"""Of the plans that fit, so many of the fastest are timed again beside the chosen one."""
ROUNDS = 3
BUDGETS = (0.15, 0.4, 1.0)
"""Shares of the way from the smallest peak of the sweep to that of its fastest plan."""
RECIPES = {
    "stories 128x4, 16 x 128": "stories --width 128 --layers 4 --heads 4 --seq-len 128 --batch-size 16",
    "stories 192x3, 8 x 512": "stories --width 192 --layers 3 --heads 6 --seq-len 512 --batch-size 8",
}
SPACE: dict[str, Sequence[Any]] = {
    "micro_batch": (1, 2, 4, 8, 16),
    "remat": ("none", "dots", "block"),
    "loss_chunk": (0, 256),
    "precision": ("float32", "bfloat16"),
}

Planned = Mapping[str, Any]


def planned(words: str, memory: str, pins: Mapping[str, Any]) -> Planned | None:
    """Returns a plan as it is printed, its step timed now; None where it is refused."""
    command = [*PLIMSOLL, "plan", *words.split(), "--memory", memory, "--measure", "--json"]
    for name, value in pins.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(command, env=ENVIRONMENT | {"PLIMSOLL_CACHE": cache}, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def pins_of(plan: Planned) -> dict[str, Any]:
    return {name: plan["plan"][name] for name in SPACE}


def sweep(words: str) -> list[Planned]:
    """Returns the plans of the space, the fastest first. What is refused is left out."""
    plans = []
    for values in itertools.product(*SPACE.values()):
        plan = planned(words, "8GiB", dict(zip(SPACE, values, strict=True)))
        if plan is not None:
            plans.append(plan)
    return sorted(plans, key=lambda plan: plan["step_seconds"])


def budgets(swept: Sequence[Planned]) -> list[int]:
    """Returns whole MiB."""
    peaks = [plan["predicted_peak_bytes"] for plan in swept]
    least, most = min(peaks), peaks[0]
    return sorted({-(-int(least + share * max(0, most - least)) // MIB) for share in BUDGETS})


def compare(words: str, swept: Sequence[Planned], budget: int) -> dict[str, Any]:
    """Returns the chosen plan of a budget beside the fastest that fit."""
    memory = f"{budget}MiB"
    chosen = planned(words, memory, {})
    if chosen is None:
        raise SystemExit(f"no plan within {memory}: {words}")

    # Rivals are what the planner takes where it is pinned.
    rivals = [pins_of(chosen)]
    fitting = [plan for plan in swept if plan["predicted_peak_bytes"] <= budget * MIB]
    for plan in fitting:
        pins = pins_of(plan)
        if len(rivals) <= RIVALS and pins not in rivals and planned(words, memory, pins) is not None:
            rivals.append(pins)

    # In turn, so that a busy minute is everybody's.
    rounds = [[planned(words, memory, pins) for pins in rivals] for _ in range(ROUNDS)]
    timed = [[plan for plan in of_rival if plan is not None] for of_rival in zip(*rounds, strict=True)]
    seconds = [statistics.median(plan["step_seconds"] for plan in of_rival) for of_rival in timed]
    fastest = seconds.index(min(seconds))
    names = [plan_words(of_rival[0]["plan"]) for of_rival in timed]
    return {
        "budget": budget,
        "fitting": len(fitting),
        "chosen": names[0],
        "chosen_seconds": seconds[0],
        "fastest": names[fastest],
        "fastest_seconds": seconds[fastest],
        "ratio": seconds[0] / seconds[fastest],
        "rivals": list(zip(names, seconds, strict=True)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default=str(Path(os.environ.get("PLIMSOLL_SHARED", "../shared"), TEXT)))
    parser.add_argument("--recipes", type=int, nargs="*", default=list(range(len(RECIPES))))
    options = parser.parse_args()
    rows = []
    for name in [list(RECIPES)[number] for number in options.recipes]:
        words = f"{RECIPES[name]} --vocab-size 4096 --dataset-id {options.text} --shuffle-buffer-size 1000 --steps 100"
        swept = sweep(words)
        fastest, slowest = swept[0]["step_seconds"], swept[-1]["step_seconds"]
        print(f"{name}: {len(swept)} plans, {fastest * 1e3:.0f} to {slowest * 1e3:.0f} ms a step", flush=True)
        for budget in budgets(swept):
            row = compare(words, swept, budget)
            rows.append({"recipe": name} | row)
            print(
                f"  {budget:5} MiB, {row['fitting']:3} fit: chosen {row['chosen']:22}"
                f" {row['chosen_seconds'] * 1e3:6.0f} ms, fastest {row['fastest']:22}"
                f" {row['fastest_seconds'] * 1e3:6.0f} ms: {row['ratio'] - 1:+.1%}",
                flush=True,
            )
    write(ROOT / "bench-out/sweep.json", {"rows": rows})
    ratios = [row["ratio"] for row in rows]
    print(f"slower than the fastest that fits: median {statistics.median(ratios) - 1:.1%}, worst {max(ratios) - 1:.1%}")
    return 0 if max(ratios) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
