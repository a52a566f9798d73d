"""Runs every program of this folder that a page quotes: one line each, its figure beside its goal.

    python benchmarks/all.py [--quick] [--only plan_time sweep ...] [--list]

`--quick` has fewer rounds, steps or draws; without it, it takes more than a day. One after another, since most of them
time something: nothing else should run. The line shows the first goal that the program says is missed, else the first
that it names, else its last line. What a program writes goes into bench-out/, as always, and its whole output into
bench-out/all/, a file for each line. The exit code is the number of programs that failed, could not get their data, or
say of a goal that it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared"))
OUT = ROOT / "bench-out/all"


@dataclass(frozen=True)
class Benchmark:
    """A program of this folder, or a command of plimsoll's. `{shared}` stands for the folder of real data, `{made}` for
    a folder in which `first` makes what it reads, once for all."""

    name: str
    """As in `prediction`, or `plimsoll ladder`."""
    whole: str = ""
    quick: str | None = ""
    """Options of --quick; None where it is left out there."""
    first: tuple[str, ...] = ()
    """Commands of plimsoll's that make what it reads."""
    needs: str = ""
    """What has to be there: a path below `{shared}`, or a program."""


TEXT = "data/text/tinystories_train.txt"
TOYS = "data/interactions/amazon_toys.txt"
STORIES_MODEL = "data/weights/hf_tinystories_656K"
WINDOWS = ("prepare control --samples 400k --out {made}/windows.h5",)
MANY_WINDOWS = ("prepare control --samples 2M --out {made}/windows-2m.h5",)
SETS = tuple(f"prepare sudoku --size {size} --out {{made}}/sets/sudoku-{size}" for size in (4, 6))
PACKED = ("prepare longcontext --dataset-id python:standard-library --vocab-size 4096 --out {made}/packed",)
ITEMS = (f"prepare recommend --interactions {{shared}}/{TOYS} --out {{made}}/toys",)
STANDARD = "--dataset-id python:standard-library --max-examples 300 --validation-tokens 2000 --steps 200"


BENCHMARKS = [
    # What a plan says, and how long it takes.
    Benchmark("plan_time", "--seed 1 --count 24", "--seed 1 --count 4"),
    Benchmark("sweep", "--spaces short long --no-neighbours", None, needs=TEXT),
    Benchmark("prediction", "--runs 1 --seed 1 --count 100 --steps 24", "--runs 1 --seed 1 --count 5", needs=TEXT),
    Benchmark("prediction", "--runs 1 --seed 11 --count 40 --near-floor --steps 24", None, needs=TEXT),
    Benchmark("prediction", "--runs 1 --recipe control --data {made}/windows.h5 --count 5", None, first=WINDOWS),
    Benchmark("prediction", "--runs 1 --recipe puzzles --data {made}/sets --count 8", None, first=SETS),
    Benchmark("prediction", "--runs 1 --recipe longcontext --data {made}/packed --count 6", None, first=PACKED),
    Benchmark(
        "prediction",
        f"--runs 1 --recipe recommend --data {{made}}/toys --pretrained {{shared}}/{STORIES_MODEL} --count 4",
        None,
        first=ITEMS,
        needs=STORIES_MODEL,
    ),
    Benchmark("prediction", "--runs 1 --recipe finetune --data {made}/records.jsonl --count 30", None, needs=TEXT),
    Benchmark(
        "plimsoll ladder",
        f"stories {STANDARD} --target-params 12M --vocab-size 4096 --batch-size 16 --seq-len 256 --rung-steps 6"
        " --rungs save micro-batch-1 remat bfloat16 optimizer-8 weights-24 weights-16",
        None,
    ),
    Benchmark("plimsoll ladder", "control --data {made}/windows.h5 --steps 200", None, first=WINDOWS),
    Benchmark(
        "plimsoll ladder",
        "longcontext-nano --data {made}/packed --batch-size 4 --rung-steps 3 --validation-tokens 20000",
        None,
        first=PACKED,
    ),
    Benchmark(
        "plimsoll ladder",
        f"recommend --data {{made}}/toys --pretrained {{shared}}/{STORIES_MODEL} --side-layers 0 --batch-size 64"
        " --rung-steps 3 --rungs save micro-batch remat bfloat16 frozen-16 frozen-8 frozen-4",
        None,
        first=ITEMS,
        needs=STORIES_MODEL,
    ),
    Benchmark("device", "--minutes 25", "--minutes 8", needs="nvidia-smi"),
    Benchmark("levers", "", None),
    # How fast a step is, beside others, and whether it waits for data.
    Benchmark("own_recipe_speed", "--rounds 5", "--rounds 2"),
    Benchmark(
        "text_vs_trainer",
        "--configurations 384x6-float32 128x4-float32 128x4-bf16 --rounds 3 --steps-small 120",
        None,
        needs=TEXT,
    ),
    Benchmark("trm", "--rounds 5", "--rounds 2"),
    Benchmark("optimizers", "--rounds 15", "--rounds 3"),
    Benchmark("finetune_beside_peft", "--rounds 3", None),
    Benchmark("loaders", "packed", "packed --tokens 33554432 --rounds 2"),
    Benchmark("loaders", "packed --seq-len 32768 --batch 4 --out bench-out/loaders-packed-32.json", None),
    Benchmark("loaders", "windows {made}/windows.h5", "windows {made}/windows.h5 --rounds 1", first=WINDOWS),
    Benchmark("loaders", "text", "text --rounds 1"),
    # What is learned.
    Benchmark(
        "quality",
        f"recommend --interactions {{shared}}/{TOYS} --pretrained {{shared}}/{STORIES_MODEL} --only defaults frozen",
        None,
        needs=STORIES_MODEL,
    ),
    Benchmark("quality", "control --data {made}/windows-2m.h5", None, first=MANY_WINDOWS),
    Benchmark("quality", f"stories --text {{shared}}/{TEXT} --checkpoint {{shared}}/{STORIES_MODEL}", None, needs=TEXT),
    Benchmark("quality", "finetune", None, needs=STORIES_MODEL),
    Benchmark("quality", "longcontext --minutes 5", None),
    # Bytes of models on cards.
    Benchmark("finetune_cards", "published", None),
    Benchmark(
        "finetune_cards",
        "context --model llama-3.1-8b qwen2.5-7b llama-3.2-3b gemma-2-9b --variant plain host no-host",
        None,
    ),
    # What cannot be broken.
    Benchmark("saves", "sizes", "sizes --mb 15 --rounds 2"),
    Benchmark("saves", "growth --steps 20000", "growth --steps 6000"),
    Benchmark("torture", "--minutes 60", "--minutes 4"),
    Benchmark("torture_processes", "--faults 100 --minutes 150", None),
    Benchmark("schedulers", "", None, needs="mpirun"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, steps or draws; some are left out")
    parser.add_argument("--only", nargs="+", choices=sorted({each.name for each in BENCHMARKS}), default=[])
    parser.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    missed = 0
    with tempfile.TemporaryDirectory() as made:
        if not options.list:
            for rows in (ROOT / "bench-out").glob("prediction-*.jsonl"):  # it refuses to go on behind those of before
                rows.replace(rows.with_name(f"{rows.name}.earlier"))
        if (SHARED / TEXT).exists():
            write_records(SHARED / TEXT, Path(made) / "records.jsonl")
        for number, benchmark in enumerate(BENCHMARKS):
            words = benchmark.quick if options.quick else benchmark.whole
            file = OUT / f"{number:02}-{benchmark.name.replace(' ', '-')}.txt"
            if words is None or (options.only and benchmark.name not in options.only):
                continue
            command = f"{program(benchmark.name)} {words}".strip()
            if options.list:
                print(filled(command, made))
            elif not is_here(benchmark.needs):
                print(f"{file.stem:22} left out: {benchmark.needs} is not here", flush=True)
            else:
                missed += run(benchmark, command, file, made)
    return missed


def write_records(text: Path, file: Path) -> None:
    """Writes the stories of a text as records to fine-tune on."""
    stories = (story.strip() for story in text.read_text("utf-8").split("<|endoftext|>"))
    file.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories if story), "utf-8")


def program(name: str) -> str:
    return name if name.startswith("plimsoll ") else f"python benchmarks/{name}.py"


def filled(words: str, made: str) -> str:
    return words.replace("{shared}", str(SHARED)).replace("{made}", made)


def is_here(needed: str) -> bool:
    return not needed or (SHARED / needed).exists() or shutil.which(needed) is not None


def run(benchmark: Benchmark, command: str, file: Path, made: str) -> bool:
    """Runs it, after what makes its data, prints its line, and returns whether it failed or missed a goal."""
    started = time.monotonic()
    outputs = []
    for words in (*(f"plimsoll {first}" for first in benchmark.first), command):
        done = ended(words, made)
        outputs.append(f"$ {done.args}\n{done.stdout}{done.stderr}")
        if done.returncode:
            break
    file.write_text("\n".join(outputs), "utf-8")

    figures = goals_in(done.stdout if done.stdout.strip() else done.stderr)
    missed = [line for line in figures if "missed" in line]
    outcome = f"goals missed: {len(missed)}" if missed else "done"
    if done.returncode:
        outcome = f"`{words}` ended with exit code {done.returncode}"
    figure = "".join([*missed, *figures][:1])
    print(f"{file.stem:22} {(time.monotonic() - started) / 60:5.1f} min, {outcome}: {figure}", flush=True)
    return done.returncode != 0 or bool(missed)


def ended(command: str, made: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in this checkout. Data that are there already are not made again."""
    words = shlex.split(filled(command, made))
    if words[:2] == ["plimsoll", "prepare"] and Path(words[words.index("--out") + 1]).exists():
        return subprocess.CompletedProcess(command, 0, "made already\n", "")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    module = ["-m", "plimsoll.cli.main"] if words[0] == "plimsoll" else []
    return subprocess.run(
        [sys.executable, *module, *words[1:]],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


def goals_in(output: str) -> list[str]:
    """Returns the lines that name a goal; without one, the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    goals = [line for line in lines if "goal" in line.lower() and not line.startswith("|")]  # no table's head
    return goals or lines[-1:]


if __name__ == "__main__":
    raise SystemExit(main())
