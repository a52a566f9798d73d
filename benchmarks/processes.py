"""One run by one process and by two, each on a core of its own: what the second one brings.

    python benchmarks/processes.py [--rounds 3] [--steps 40]
    python benchmarks/processes.py --every-recipe [--only code control]
    python benchmarks/processes.py --before COMMIT [--rounds 5]

The same command line, data, effective batch and number of micro-batches; two processes join by `--coordinator`, have
half of every micro-batch each, and add up their gradients over Gloo. Beside them two that share nothing: two runs at
once, each of one process and with half the batch, which is the most that these cores could give (two that a machine
calls cores may be one). In turn; of each the median step after the first quarter. Efficiency is the time of one process
over twice that of two. The losses of both are compared: the second process changes who computes, not what is learned.
Writes bench-out/processes.json. `--before` compares one process of an earlier commit with one of this checkout, in
turn: the time of a step, the peak, and the time from the command to the end of a run of eight steps that are saved
four times, whose plan and compiled steps are in the cache; writes bench-out/one_process.json.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from goals import verdict
from peers.environment import ROOT
from text_vs_trainer import conditions
from training_process import ENVIRONMENT, MIB, PLIMSOLL, SOURCE

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
    options.add_argument("--before", metavar="COMMIT", help="of this repository")
    given = options.parse_args()
    if given.every_recipe:
        every_recipe(given.only)
        return
    if given.before:
        beside(given)
        return
    with tempfile.TemporaryDirectory(prefix="plimsoll-processes-") as folder:
        rounds = [
            {count: trained(given, count, Path(folder) / f"{number}-{count}") for count in (1, 2)}
            | {"apart": apart(given, Path(folder) / f"{number}-apart")}
            for number in range(given.rounds)
        ]
    seconds = {which: [each[which]["seconds"] for each in rounds] for which in (1, 2, "apart")}
    one, two, nothing_shared = (median(of) for of in seconds.values())
    difference = max(
        abs(a - b) / abs(b) for each in rounds for a, b in zip(each[2]["losses"], each[1]["losses"], strict=True)
    )
    parameters = rounds[0][1]["parameters"]
    found = {"seconds": seconds, "parameters": parameters, "efficiency": one / (2 * two)}
    write("processes", given, found | {"most": one / (2 * nothing_shared), "losses_apart": difference})
    print(f"{parameters:,} parameters, {given.batch_size} windows a step in micro-batches of {given.micro_batch}")
    print(f"one process   {one:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds[1])}")
    print(f"two processes {two:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds[2])}")
    print(f"share nothing {nothing_shared:.3f} s a step   of {', '.join(f'{each:.3f}' for each in seconds['apart'])}")
    outcome = verdict(met=one / (2 * two) >= 0.95)
    print(
        f"speed-up {one / two:.2f}, efficiency {one / (2 * two):.0%} (goal 95 %: {outcome}) where two that"
        f" share nothing have {one / (2 * nothing_shared):.0%}; losses at most {difference:.1e} apart"
    )


def beside(given: argparse.Namespace) -> None:
    """Compares one process of the commit before with one of this checkout: the time of a step, and the peak."""
    git = ["git", "-C", ROOT]
    archive = subprocess.run([*git, "archive", given.before, "src"], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory(prefix="plimsoll-processes-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        sources = {"before": Path(folder) / "src", "now": SOURCE}
        rounds = [
            {name: trained(given, 1, Path(folder) / f"{number}-{name}", source) for name, source in sources.items()}
            for number in range(given.rounds)
        ]
        short = [
            {
                name: whole_run(given, Path(folder) / f"short-{number}-{name}", source)
                for name, source in sources.items()
            }
            for number in range(given.rounds + 1)
        ][1:]
    seconds = {name: [each[name]["seconds"] for each in rounds] for name in sources}
    peaks = {name: [each[name]["peak"] for each in rounds] for name in sources}
    ratios = [now / before for before, now in zip(seconds["before"], seconds["now"], strict=True)]
    commit = subprocess.run(
        [*git, "rev-parse", f"{given.before}^{{commit}}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    losses = {each[name]["losses"][-1] for each in rounds for name in sources}
    whole = {name: [each[name] for each in short] for name in sources}
    of_whole = [now / before for before, now in zip(whole["before"], whole["now"], strict=True)]
    found = {"before": commit, "seconds": seconds, "peaks": peaks, "ratio": median(ratios), "losses": sorted(losses)}
    write("one_process", given, found | {"whole_seconds": whole, "whole_ratio": median(of_whole)})
    for name in sources:
        peak = median(peaks[name]) / MIB
        print(f"{name:7} {median(seconds[name]):.4f} s a step, peak {peak:.1f} MiB; {median(whole[name]):.2f} s in all")
    print(f"now over before: {median(ratios):.3f} of {', '.join(f'{each:.3f}' for each in ratios)}; losses {losses}")
    print(f"from command to end: {median(of_whole):.3f} of {', '.join(f'{each:.3f}' for each in of_whole)}")


def whole_run(given: argparse.Namespace, run: Path, source: Path) -> float:
    """Returns the seconds of a run of eight steps that are saved four times, from the command to its end."""
    words = words_of(argparse.Namespace(**{**vars(given), "steps": 8}))
    words[words.index("--save-every") + 1] = "2"
    begun = time.monotonic()
    started(words, 1, run, source)
    return time.monotonic() - begun


def write(name: str, given: argparse.Namespace, found: dict[str, Any]) -> None:
    out = Path(f"bench-out/{name}.json")
    out.parent.mkdir(exist_ok=True)
    sizes = {key: value for key, value in vars(given).items() if isinstance(value, int)}
    how = {"conditions": conditions(argparse.Namespace()), "options": sizes}
    out.write_text(json.dumps(how | found, indent=1))


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


def trained(given: argparse.Namespace, count: int, run: Path, source: Path = SOURCE) -> dict[str, Any]:
    return figures(run, started(words_of(given), count, run, source))


def apart(given: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Trains two runs at once, each by one process on a core of its own and with half the batch."""
    half = argparse.Namespace(**{**vars(given), "batch_size": given.batch_size // 2})
    half.micro_batch = given.micro_batch // 2
    runs = [Path(f"{run}-{number}") for number in range(2)]
    wait_for([start([*PLIMSOLL, "train", *words_of(half), "--run", str(each)], core) for core, each in enumerate(runs)])
    return {"seconds": max(figures(each, [])["seconds"] for each in runs)}


def words_of(given: argparse.Namespace) -> list[str]:
    sizes = f"--width {given.width} --layers {given.layers} --heads {given.width // 32} --steps {given.steps}"
    split = f"--batch-size {given.batch_size} --micro-batch {given.micro_batch}"
    return ["code", *sizes.split(), *split.split(), *PLAN.split()]


def figures(run: Path, losses: Sequence[float]) -> dict[str, Any]:
    steps = [row for row in rows_of(run) if "loss" in row]
    planned = json.loads((run / "plan.json").read_text())
    return {
        "seconds": median(row["step_seconds"] for row in steps[len(steps) // 4 :]),
        "losses": losses,
        "parameters": planned["parameters"],
        "peak": json.loads((run / "ledger.json").read_text())["measured"]["peak_bytes"],
    }


def started(words: Sequence[str], count: int, run: Path, source: Path = SOURCE) -> list[float]:
    """Trains by so many processes, each on one core, and returns the loss of every step."""
    command = [*PLIMSOLL, "train", *words, "--run", str(run)]
    if count > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command += ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count)]
    wait_for(
        [
            start([*command, *(["--process", str(number)] if count > 1 else [])], number, source)
            for number in range(count)
        ]
    )
    return [row["loss"] for row in rows_of(run) if "loss" in row]


def start(command: Sequence[str], core: int, source: Path = SOURCE) -> subprocess.Popen[bytes]:
    """Starts it on one of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=partial(os.sched_setaffinity, 0, {cores[core % len(cores)]}),
    )


def wait_for(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{processes[0].args}: {len(codes)} processes ended with {codes}")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
