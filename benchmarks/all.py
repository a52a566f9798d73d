"""Runs every benchmark that a page quotes: its goal beside its figure, a line or a few each.

    python benchmarks/all.py [--quick] [--only plan_time sweep ...] [--list]

`--quick` has fewer rounds, steps or draws, and takes about an hour on two cores; without it a day. One after another,
since most of them time something: nothing else should run. A figure is a line of the program's output with the word
`goal`, or its last line, beside the goal that is written here. What a program writes goes into bench-out/, as always,
and its output into bench-out/all/NAME.txt. The exit code is the number of programs that failed or that say of a goal
that it is missed; a goal that is written here is for the reader, who holds the figure beside it against it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared"))
OUT = ROOT / "bench-out/all"


@dataclass(frozen=True)
class Benchmark:
    """A program of this folder, with its options. `{shared}` stands for the folder of real data, `{made}` for a folder
    in which `first` makes what it reads."""

    name: str
    whole: str = ""
    quick: str | None = ""
    """Options of --quick; None where it is left out there."""
    goal: str = ""
    """Goal of a program that does not print one."""
    first: tuple[str, ...] = ()
    """Commands of plimsoll's that make what it reads."""
    needs: str = ""
    """What has to be there: a path below `{shared}`, or a program."""


TEXT = "data/text/tinystories_train.txt"
WINDOWS = ("prepare control --samples 400k --out {made}/windows.h5",)
PREDICTION_GOAL = "median error at most 4 MiB or 1 %, none over its budget"

BENCHMARKS = [
    # What a plan says, and how long it takes.
    Benchmark("plan_time", "--seed 1 --count 24", "--seed 1 --count 4"),
    Benchmark("sweep", "--recipes 0 1", None, needs=TEXT),
    Benchmark(
        "prediction", "--seed 1 --count 100 --runs 1", "--seed 1 --count 5 --runs 1", PREDICTION_GOAL, needs=TEXT
    ),
    Benchmark("prediction", "--seed 11 --count 40 --runs 1 --near-floor --steps 24", None, PREDICTION_GOAL, needs=TEXT),
    Benchmark("beliefs", "--count 10", None, "each error within the constant beside it"),
    Benchmark(
        "estimated",
        "--chips h200 tpu-v5e-8 tpu-v4-64 --count 10",
        None,
        "within -24 and +28 % for one device, -54 and +73 % for several",
    ),
    Benchmark("card_steps", "", None, "within 0.75 and 1.3 of what an H100 took"),
    Benchmark("offline_card", "", None, "the bytes that an H100 took, within 1 %"),
    Benchmark("collectives", "", None, "each collective named"),
    Benchmark("levers", "", None, "every table of docs/levers.md"),
    # How fast a step is, beside others.
    Benchmark("own_recipe_speed", "--rounds 5", "--rounds 2"),
    Benchmark("text_vs_trainer", "--rounds 2", None, needs=TEXT),
    Benchmark("trm", "--rounds 9", "--rounds 2", needs="golden"),
    Benchmark("optimizers", "--rounds 15", "--rounds 3"),
    Benchmark("longcontext", "", "--lengths 2048 8192 --tokens 8192 --rounds 2", "linear in the length: at most 1.3"),
    Benchmark("finetune_beside_peft", "--rounds 3", None),
    Benchmark("finetune_gguf", "", None),
    Benchmark("processes", "--every-recipe", None, "losses at most 1e-5 apart", needs="data/weights"),
    Benchmark("processes", "--steps 40", "--steps 12 --rounds 1", "efficiency of two at least 95 %"),
    Benchmark("shared_saves", "", "--rounds 2"),
    Benchmark("shared_tokens", "--copies 8", "--copies 2 --rounds 1", "faster than one process, the same ids"),
    Benchmark("data_waits", "", "--rounds 1"),
    Benchmark("packed_loader", "", "--tokens 33554432 --rounds 2"),
    Benchmark("windows", "loader {made}/windows.h5", "loader {made}/windows.h5 --rounds 1", first=WINDOWS),
    # What is learned.
    Benchmark("eight_bit_parity", "--forms 8", None, needs=TEXT),
    Benchmark("precision_loss", "", None, "bfloat16 within 1 % of float32"),
    Benchmark("longcontext_language", "--minutes 6", None, "at most the transformer's loss"),
    Benchmark(
        "small_stories",
        f"--text {{shared}}/{TEXT} --checkpoint {{shared}}/data/weights/hf_tinystories_656K",
        None,
        "fewer bits a byte than the published checkpoint, in 90 minutes",
        needs=TEXT,
    ),
    Benchmark("recall", "--longer", None, "a symbol remembered over 4,096 tokens"),
    Benchmark("best_size", "--minutes 20", "--minutes 1"),
    Benchmark(
        "recommend_quality",
        "--interactions {shared}/data/interactions/amazon_toys.txt",
        None,
        "HR@10 0.0985, NDCG@10 0.0667, MRR 0.0607 on Toys",
        needs="data/interactions/amazon_toys.txt",
    ),
    Benchmark(
        "control_quality",
        "--data {made}/windows-2m.h5",
        None,
        first=("prepare control --samples 2M --out {made}/windows-2m.h5",),
    ),
    Benchmark("finetune_quality", "", None, "adapters below the model as published"),
    # Bytes of models and of cards.
    Benchmark("finetune_published", "", None, "each at most the published peak"),
    Benchmark("finetune_context", "--variant plain host", None),
    Benchmark("finetune_formula", "--count 20", None, "within 10 % of the compiler's bytes"),
    Benchmark("finetune_resident", "", None),
    Benchmark("load_pretrained", "", "", "the stored form and the largest tensor, at most"),
    Benchmark("recommend_memory", "", None, "each below 30 GiB"),
    Benchmark("line_holds", f"--text {{shared}}/{TEXT}", None, "none killed at its line", needs=TEXT),
    # What cannot be broken.
    Benchmark("growth", "--steps 20000", "--steps 3000"),
    Benchmark("fuzz", "--count 2000", "--count 60", "0 troubles"),
    Benchmark("torture", "--minutes 60", "--minutes 4", "0 troubles"),
    Benchmark("torture_processes", "--faults 100 --minutes 150", None, "none lost, every fingerprint the same"),
    Benchmark("schedulers", "", None, "each its lines, and the same bits", needs="mpirun"),
    Benchmark("package", "", None, "each Python installs, helps and plans"),
    Benchmark("mutate", "--seed 1 --count 30", None, "at most 3 survive"),
    # What a reader meets.
    Benchmark("report_in_browser", "", None, "nothing asked for, nothing complained of", needs="chromium"),
    Benchmark("house"),
    Benchmark("words"),
]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds, steps or draws; some are left out")
    options.add_argument("--only", nargs="+", choices=sorted({each.name for each in BENCHMARKS}), default=[])
    options.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    given = options.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    missed = 0
    with tempfile.TemporaryDirectory() as made:
        for benchmark in BENCHMARKS:
            words = benchmark.quick if given.quick else benchmark.whole
            if words is None or (given.only and benchmark.name not in given.only):
                continue
            command = f"python benchmarks/{benchmark.name}.py {_filled(words, made)}".strip()
            if given.list:
                print(command)
            elif lacking := _lacking(benchmark):
                print(f"{benchmark.name:22} left out: {lacking} is not here", flush=True)
            else:
                missed += _run(benchmark, command, made)
    return missed


def _filled(words: str, made: str) -> str:
    return words.replace("{shared}", str(SHARED)).replace("{made}", made)


def _lacking(benchmark: Benchmark) -> str:
    """Returns what a program needs and is not here; empty for nothing."""
    here = not benchmark.needs or (SHARED / benchmark.needs).exists() or shutil.which(benchmark.needs)
    return "" if here else benchmark.needs


def _run(benchmark: Benchmark, command: str, made: str) -> bool:
    """Runs it, prints its figures, and returns whether it failed or missed a goal."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    how = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": paths}, "capture_output": True, "text": True}
    for words in benchmark.first:
        subprocess.run(
            [sys.executable, "-m", "plimsoll.cli.main", *shlex.split(_filled(words, made))], check=True, **how
        )
    started = time.monotonic()
    done = subprocess.run([sys.executable, *shlex.split(command)[1:]], check=False, **how)
    minutes = (time.monotonic() - started) / 60
    name = OUT / f"{benchmark.name}.txt"
    name.write_text(f"$ {command}\n{done.stdout}{done.stderr}", "utf-8")
    figures = list(_figures(benchmark, done.stdout if done.stdout.strip() else done.stderr))
    missed = sum("missed" in line for line in figures)
    said = f"exit code {done.returncode}" if done.returncode else f"goals missed: {missed}" if missed else "done"
    print(f"{benchmark.name:22} {minutes:5.1f} min, {said}", flush=True)
    for line in figures:
        print(f"{'':22} {line}", flush=True)
    return done.returncode != 0 or missed > 0


def _figures(benchmark: Benchmark, output: str) -> Iterator[str]:
    """Yields the lines with a goal; or the last line, beside the goal that is written here."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    with_goal = [line for line in lines if "goal" in line.lower() and not line.startswith("|")]  # no table's head
    if with_goal and not benchmark.goal:
        yield from with_goal
    elif lines:
        yield f"{lines[-1]}  (goal: {benchmark.goal or 'its exit code'})"


if __name__ == "__main__":
    raise SystemExit(main())
