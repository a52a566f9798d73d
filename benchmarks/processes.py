"""One run by one process and by two, each on a core of its own: what the second one brings.

    python benchmarks/processes.py [--rounds 3] [--steps 40]
    python benchmarks/processes.py --every-recipe [--only code control]

The same command line, data, effective batch and number of micro-batches; two processes join by `--coordinator`, have
half of every micro-batch each, and add up their gradients over Gloo. In turn, 1 2 1 2; of each the median step after
the first quarter. Efficiency is the time of one process over twice that of two. The losses of both are compared: the
second process changes who computes, not what is learned. Writes bench-out/processes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from peers.environment import ROOT
from text_vs_trainer import conditions
from training_process import ENVIRONMENT, PLIMSOLL

PLAN = (
    "--remat none --loss-chunk 0 --precision float32 --prefetch 1 --async-save False --max-examples 200"
    " --eval-every 0 --save-every 1000000 --log-every 1 --quiet"
)

SHARED = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared")) / "data"
TEXT = SHARED / "text/tinyshakespeare.txt"
EVERY = {
    "code": "code --width 64 --layers 2 --heads 2 --vocab-size 512 --seq-len 64 --max-examples 50 --loss-chunk 64",
    "control": "control --data {made}/windows.h5 --width 32 --layers 2 --heads 2 --learning-rate 5e-4",
    "longcontext": "longcontext --data {made}/packed --width 32 --layers 2 --states 32 --seq-len 128",
    "recommend": "recommend --data {made}/films --seq-len 32",
    "sudoku-4x4": "sudoku-4x4 --data {made}/sudoku --validation-examples 16",
    "finetune": f"finetune --pretrained {SHARED}/weights/hf_tinystories_656K --dataset-id {{made}}/texts.jsonl"
    " --seq-len 64 --frozen-bits 16",
    "own": f"{ROOT}/benchmarks/ours/photos.py",
}
"""Kinds of recipes, each small. `control` learns slower than by default: at its own rate a step magnifies rounding."""
MADE = {
    "control": "control --samples 20k --out {made}/windows.h5",
    "longcontext": f"longcontext --dataset-id {TEXT} --vocab-size 512 --out {{made}}/packed",
    "recommend": f"recommend --interactions {SHARED}/interactions/ml-latest-small/ratings.csv --out {{made}}/films",
    "sudoku-4x4": "sudoku --size 4 --out {made}/sudoku",
}
"""What `plimsoll prepare` makes for them."""
SMALL = "--batch-size 16 --micro-batch 8 --remat none --precision float32 --prefetch 0 --async-save False --log-every 1"
ENDS = "--eval-every 0 --save-every 1000000 --memory 900MiB --quiet"
STEPS = {"sudoku-4x4": 3}
"""Steps of a recipe, if not eight. A puzzle's halting is discontinuous: what is 1e-7 apart in its first steps is 1e-3
apart after eight, in one process with its batch in other parts, too."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--micro-batch", type=int, default=16)
    options.add_argument("--width", type=int, default=192)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--every-recipe", action="store_true")
    options.add_argument("--only", nargs="+", choices=sorted(EVERY), default=list(EVERY), help="of --every-recipe")
    given = options.parse_args()
    if given.every_recipe:
        every_recipe(given.only)
        return
    with tempfile.TemporaryDirectory(prefix="plimsoll-processes-") as folder:
        rounds = [
            {count: trained(given, count, Path(folder) / f"{number}-{count}") for count in (1, 2)}
            for number in range(given.rounds)
        ]
    seconds = {count: [each[count]["seconds"] for each in rounds] for count in (1, 2)}
    one, two = (median(seconds[count]) for count in (1, 2))
    apart = max(
        abs(a - b) / abs(b) for each in rounds for a, b in zip(each[2]["losses"], each[1]["losses"], strict=True)
    )
    parameters = rounds[0][1]["parameters"]
    found = {"options": vars(given), "seconds": seconds, "parameters": parameters, "efficiency": one / (2 * two)}
    found["losses_apart"] = apart
    out = Path("bench-out/processes.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1))
    print(f"{parameters:,} parameters, {given.batch_size} windows a step in micro-batches of {given.micro_batch}")
    print(f"one process   {one:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds[1])}")
    print(f"two processes {two:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds[2])}")
    print(f"speed-up {one / two:.2f}, efficiency {one / (2 * two):.0%}; losses at most {apart:.1e} apart")


def every_recipe(names: Sequence[str]) -> None:
    """Compares the losses of one process with those of two and of four, for each kind of recipe."""
    out = ROOT / "bench-out/processes_recipes.json"
    out.parent.mkdir(exist_ok=True)
    found: dict[str, Any] = json.loads(out.read_text())["recipes"] if out.exists() and len(names) < len(EVERY) else {}
    with tempfile.TemporaryDirectory(prefix="plimsoll-processes-") as made:
        texts = [json.dumps({"text": text}) for text in TEXT.read_text("utf-8")[:200_000].split("\n\n")]
        (Path(made) / "texts.jsonl").write_text("\n".join(texts))
        for name in names:
            if name in MADE:
                subprocess.run(
                    [*PLIMSOLL, "prepare", *MADE[name].format(made=made).split()],
                    env=ENVIRONMENT,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
            words = f"{EVERY[name].format(made=made)} {SMALL} {ENDS} --steps {STEPS.get(name, 8)}".split()
            losses = {count: started(words, count, Path(made) / f"{name}-{count}") for count in (1, 2, 4)}
            apart = {
                count: max(abs(a - b) / abs(b) for a, b in zip(losses[count], losses[1], strict=True))
                for count in (2, 4)
            }
            found[name] = {"losses": losses, "apart": apart}
            print(f"{name:12} {len(losses[1])} steps, losses at most {apart[2]:.1e} (two), {apart[4]:.1e} (four) apart")
            out.write_text(json.dumps({"conditions": conditions(argparse.Namespace()), "recipes": found}, indent=1))


def trained(given: argparse.Namespace, count: int, run: Path) -> dict[str, Any]:
    sizes = f"--width {given.width} --layers {given.layers} --heads {given.width // 32} --steps {given.steps}"
    split = f"--batch-size {given.batch_size} --micro-batch {given.micro_batch}"
    losses = started(["code", *sizes.split(), *split.split(), *PLAN.split()], count, run)
    steps = [row for row in rows_of(run) if "loss" in row]
    planned = json.loads((run / "plan.json").read_text())
    return {
        "seconds": median(row["step_seconds"] for row in steps[len(steps) // 4 :]),
        "losses": losses,
        "parameters": planned["parameters"],
    }


def started(words: Sequence[str], count: int, run: Path) -> list[float]:
    """Trains by so many processes, each on one core, and returns the loss of every step."""
    command = [*PLIMSOLL, "train", *words, "--run", str(run)]
    if count > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command += ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count)]
    cores = sorted(os.sched_getaffinity(0))
    processes = [
        subprocess.Popen(
            [*command, *(["--process", str(number)] if count > 1 else [])],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            preexec_fn=partial(os.sched_setaffinity, 0, {cores[number % len(cores)]}),
        )
        for number in range(count)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{' '.join(words)}: {count} processes ended with {codes}")
    return [row["loss"] for row in rows_of(run) if "loss" in row]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
