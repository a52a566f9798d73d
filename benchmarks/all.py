"""Runs every program of this folder that a page quotes: one line each, its figure beside its goal.

    python benchmarks/all.py [--quick] [--only plan_time sweep ...] [--list]

`--quick` has fewer rounds, steps or draws; without it, it takes more than a day. One after another, since most of them
time something: nothing else should run. The line shows the first goal that the program says is
missed, else the first that it names, else the last line of its output beside the goal that is written here. What a
program writes goes into bench-out/, as always, and its whole output into bench-out/all/, a file for each line. The exit
code is the number of programs that failed, could not get their data, or say of a goal that it is missed. A goal that is
written here is `for the reader`, who holds the figure against it: it makes no exit code.
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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    goal: str = ""
    """Goal of a program that does not print one."""
    first: tuple[str, ...] = ()
    """Commands of plimsoll's that make what it reads."""
    needs: str = ""
    """What has to be there: a path below `{shared}`, or a program."""
    shows: str = ""
    """What a line of its output begins with, the first of which is shown beside `goal`; by default the last line."""


TEXT = "data/text/tinystories_train.txt"
TOYS = "data/interactions/amazon_toys.txt"
STORIES_MODEL = "data/weights/hf_tinystories_656K"
WINDOWS = ("prepare control --samples 400k --out {made}/windows.h5",)
MANY_WINDOWS = ("prepare control --samples 2M --out {made}/windows-2m.h5",)
SETS = tuple(f"prepare sudoku --size {size} --out {{made}}/sets/sudoku-{size}" for size in (4, 6))
PACKED = ("prepare longcontext --dataset-id python:standard-library --vocab-size 4096 --out {made}/packed",)
ITEMS = (f"prepare recommend --interactions {{shared}}/{TOYS} --out {{made}}/toys",)
STANDARD = "--dataset-id python:standard-library --max-examples 300 --validation-tokens 2000 --steps 200"


def prediction(words: str, quick: str | None = None, **more: Any) -> Benchmark:
    goal = "median error at most 4 MiB or 1 %, none over its budget"
    return Benchmark("prediction", f"{words} --runs 1", quick, goal, shows="median error", **more)


def ladder(words: str, last: str, **more: Any) -> Benchmark:
    goal = "each rung in its budget, predicted beside measured"
    return Benchmark("plimsoll ladder", words, None, goal, shows=last, **more)


BENCHMARKS = [
    # What a plan says, and how long it takes.
    Benchmark("plan_time", "--seed 1 --count 24", "--seed 1 --count 4"),
    Benchmark("sweep", "--recipes 0 1", None, "at most 10 % slower than the fastest that fits", needs=TEXT),
    prediction("--seed 1 --count 100 --steps 24", "--seed 1 --count 5 --runs 1", needs=TEXT),
    prediction("--seed 11 --count 40 --near-floor --steps 24", needs=TEXT),
    prediction("--recipe control --data {made}/windows.h5 --seed 2 --count 5", first=WINDOWS),
    prediction("--recipe puzzles --data {made}/sets --count 8", first=SETS),
    prediction("--recipe longcontext --data {made}/packed --count 6", first=PACKED),
    prediction(
        f"--recipe recommend --data {{made}}/toys --pretrained {{shared}}/{STORIES_MODEL} --count 4",
        first=ITEMS,
        needs=STORIES_MODEL,
    ),
    prediction("--recipe finetune --data {made}/records.jsonl --count 30", needs=TEXT),
    ladder(
        f"stories {STANDARD} --target-params 12M --vocab-size 4096 --batch-size 16 --seq-len 256 --rung-steps 6"
        " --rungs save micro-batch-1 remat bfloat16 optimizer-8 weights-24 weights-16",
        "weights-16",
    ),
    ladder("control --data {made}/windows.h5 --steps 200", "optimizer-8", first=WINDOWS),
    ladder(
        "longcontext-nano --data {made}/packed --batch-size 4 --rung-steps 3 --validation-tokens 20000",
        "weights-16",
        first=PACKED,
    ),
    ladder(
        f"recommend --data {{made}}/toys --pretrained {{shared}}/{STORIES_MODEL} --side-layers 0 --batch-size 64"
        " --rung-steps 3 --rungs save micro-batch remat bfloat16 frozen-16 frozen-8 frozen-4",
        "frozen-4",
        first=ITEMS,
        needs=STORIES_MODEL,
    ),
    Benchmark("device", "--minutes 25", "--minutes 8", "bytes within 1 %, the same bits", needs="nvidia-smi"),
    Benchmark("levers", "", None, "every table of docs/levers.md"),
    # How fast a step is, beside others, and whether it waits for data.
    Benchmark("own_recipe_speed", "--rounds 5", "--rounds 2"),
    Benchmark(
        "text_vs_trainer",
        "--configurations 384x6-float32 128x4-float32 128x4-bf16 --rounds 3 --steps-small 120",
        None,
        needs=TEXT,
    ),
    Benchmark("trm", "--rounds 5", "--rounds 2", needs="golden"),
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
        "HR@10 0.0985, NDCG@10 0.0667, MRR 0.0607 on Toys",
        needs=STORIES_MODEL,
    ),
    Benchmark("quality", "control --data {made}/windows-2m.h5", None, first=MANY_WINDOWS),
    Benchmark("quality", f"stories --text {{shared}}/{TEXT} --checkpoint {{shared}}/{STORIES_MODEL}", None, needs=TEXT),
    Benchmark("quality", "finetune", None, "adapters below the model as published", needs=STORIES_MODEL),
    Benchmark("quality", "longcontext --minutes 5", None, "at most the transformer's loss"),
    # Bytes of models on cards.
    Benchmark("finetune_cards", "published", None, "each at most the published peak"),
    Benchmark(
        "finetune_cards",
        "context --model llama-3.1-8b qwen2.5-7b llama-3.2-3b gemma-2-9b --variant plain host no-host",
        None,
        "none above 7 GB + 0.072 MB a token",
    ),
    # What cannot be broken.
    Benchmark("saves", "sizes", "sizes --mb 15 --rounds 2"),
    Benchmark("saves", "growth --steps 20000", "growth --steps 6000"),
    Benchmark("torture", "--minutes 60", "--minutes 4", "0 troubles"),
    Benchmark("torture_processes", "--faults 100 --minutes 150", None, "none lost, every fingerprint the same"),
    Benchmark("schedulers", "", None, "each its lines, and the same bits", needs="mpirun"),
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
        if not given.list:
            for rows in (ROOT / "bench-out").glob("prediction-*.jsonl"):  # it refuses to go on behind those of before
                rows.replace(rows.with_name(f"{rows.name}.earlier"))
        if (SHARED / TEXT).exists():
            write_records(SHARED / TEXT, Path(made) / "records.jsonl")
        for benchmark, file in zip(BENCHMARKS, output_files(BENCHMARKS), strict=True):
            words = benchmark.quick if given.quick else benchmark.whole
            if words is None or (given.only and benchmark.name not in given.only):
                continue
            if given.list:
                print(f"{_program(benchmark.name)} {_filled(words, made)}".strip())
            elif lacking := _lacking(benchmark):
                print(f"{file.stem:22} left out: {lacking} is not here", flush=True)
            else:
                missed += run(benchmark, words, file, made)
    return missed


def output_files(benchmarks: Sequence[Benchmark]) -> list[Path]:
    """Returns where each one's output goes: the second of a name has a number, so that it leaves the first alone."""
    often: Counter[str] = Counter()
    files = []
    for each in benchmarks:
        often[each.name] += 1
        files.append(
            OUT / f"{each.name.replace(' ', '-')}{'' if often[each.name] == 1 else f'-{often[each.name]}'}.txt"
        )
    return files


def write_records(text: Path, file: Path) -> None:
    """Writes the stories of a text as records to fine-tune on."""
    stories = (story.strip() for story in text.read_text("utf-8").split("<|endoftext|>"))
    file.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories if story), "utf-8")


def _program(name: str) -> str:
    return name if name.startswith("plimsoll ") else f"python benchmarks/{name}.py"


def _filled(words: str, made: str) -> str:
    return words.replace("{shared}", str(SHARED)).replace("{made}", made)


def _lacking(benchmark: Benchmark) -> str:
    """Returns what a program needs and is not here; empty for nothing."""
    here = not benchmark.needs or (SHARED / benchmark.needs).exists() or shutil.which(benchmark.needs)
    return "" if here else benchmark.needs


def run(benchmark: Benchmark, words: str, file: Path, made: str) -> bool:
    """Runs it, after what makes its data, prints its line, and returns whether it failed or missed a goal."""
    started, said = time.monotonic(), []
    for command in (*(f"plimsoll {first}" for first in benchmark.first), f"{_program(benchmark.name)} {words}"):
        done = _done(command, made)
        said.append(f"$ {done.args}\n{done.stdout}{done.stderr}")
        if done.returncode:
            break
    file.write_text("\n".join(said), "utf-8")
    figures = _figures(benchmark, done.stdout if done.stdout.strip() else done.stderr)
    missed = [line for line in figures if "missed" in line]
    what = f"`{command}` ended with exit code" if command.startswith("plimsoll prepare") else "exit code"
    outcome = f"{what} {done.returncode}" if done.returncode else f"goals missed: {len(missed)}" if missed else "done"
    more = f"  (and {len(figures) - 1} more)" if len(figures) > 1 else ""
    figure = "".join([*missed, *figures][:1])
    print(f"{file.stem:22} {(time.monotonic() - started) / 60:5.1f} min, {outcome}: {figure}{more}", flush=True)
    return done.returncode != 0 or bool(missed)


def _done(command: str, made: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in this checkout; one of plimsoll's is made once, where what it writes is not there yet."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    words = shlex.split(_filled(command, made))
    if words[:2] == ["plimsoll", "prepare"] and Path(words[words.index("--out") + 1]).exists():
        return subprocess.CompletedProcess(command, 0, "made already\n", "")
    program = ["-m", "plimsoll.cli.main"] if words[0] == "plimsoll" else []
    done = subprocess.run(
        [sys.executable, *program, *words[1:]],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    return subprocess.CompletedProcess(shlex.join(words), done.returncode, done.stdout, done.stderr)


def _figures(benchmark: Benchmark, output: str) -> list[str]:
    """Returns the lines with a goal; or the last line, beside the goal that is written here."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    shown = [line for line in lines if line.startswith(benchmark.shows)] if benchmark.shows else lines[-1:]
    if lines and not shown:
        return [f"missed: no line begins with {benchmark.shows!r}"]
    with_goal = [line for line in lines if "goal" in line.lower() and not line.startswith("|")]  # no table's head
    if with_goal and not benchmark.goal:
        return with_goal
    goal = f"goal, for the reader: {benchmark.goal}" if benchmark.goal else "goal: its exit code"
    return [f"{line}  ({goal})" for line in shown[:1]]


if __name__ == "__main__":
    raise SystemExit(main())
