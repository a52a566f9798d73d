"""Runs every kind of recipe at two checkouts, and compares fingerprints, losses, plans and peaks.

    python benchmarks/refactor.py BEFORE_SRC AFTER_SRC [--only WORD] [--before-python PATH]

A change that only moves or renames code must leave every row "same". `BEFORE_SRC` and `AFTER_SRC` are the `src`
folders of two checkouts (`git worktree add`). The data is made once, by the first of them. The first side searches a
plan by the rates that it measures on this machine; the second is given the same levers, compiles the step anew, and
must predict the same bytes of each component. Measured bytes differ by what a process weighs on the day.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICE_LEVERS = "--micro-batch 4 --remat none --precision float32 --prefetch 1 --async-save False --save-every 10"
RUNS = {
    "stories": "stories --dataset-id {text} --width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32"
    " --batch-size 8 --loss-chunk 0 --shuffle-buffer-size 16 --ema-decay 0.9 --ema-bits 32",
    "stories, 8-bit and 16-bit weights": "stories --dataset-id {text} --width 64 --layers 2 --heads 1 --vocab-size 300"
    " --seq-len 32 --batch-size 8 --loss-chunk 16 --shuffle-buffer-size 16 --optimizer-bits 8 --weight-bits 16",
    "code": "code --width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 64 --batch-size 8 --loss-chunk 0",
    "longcontext": "longcontext --data {packed} --width 32 --layers 2 --states 8 --seq-len 64 --batch-size 8"
    " --loss-chunk 32",
    "control": "control --data {control} --batch-size 8",
    "puzzles": "sudoku-4x4 --data {sudoku} --width 32 --heads 1 --batch-size 8 --warmup-steps 2"
    " --validation-examples 20",
    "recommend": "recommend-debug --data {interactions} --batch-size 8 --loss-chunk 32",
}
STORIES = "stories --width 128 --layers 4 --heads 4 --vocab-size 4096 --seq-len 128 --batch-size 32 --steps 100"
PLANS = (
    "code --memory 768MiB",
    f"{STORIES} --memory 700MiB",
    f"{STORIES} --memory 500MiB --numerics compressed",
    "control --data {control} --memory 600MiB",
    "control --data {control} --memory 500MiB --batch-size 512",
    "sudoku-4x4 --memory 500MiB --width 64 --heads 2",
    "sudoku-6x6 --memory 600MiB --width 64 --heads 2 --numerics exact",
    "recommend-debug --memory 600MiB",
    "longcontext --memory 700MiB --vocab-size 4096 --width 64 --layers 2 --seq-len 512",
    "code --chip h200",
)


PYTHONS: dict[Path, str] = {}
"""Folder of sources to the interpreter that runs them, where it is not this one."""


def command(source: Path, cache: Path, words: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PLIMSOLL_CACHE": str(cache),
        "PLIMSOLL_CALIBRATION": "off",
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.run(
        [PYTHONS.get(source, sys.executable), "-m", "plimsoll.cli.main", *shlex.split(words)],
        env=environment, cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip


def must(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise SystemExit(f"{shlex.join(done.args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def prepare_data(source: Path, folder: Path) -> dict[str, Path]:
    """Writes one small data set of each kind, once for both sides."""
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghij", k=drawn.randint(2, 7))) for _ in range(120)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(drawn.choices(words, k=drawn.randint(20, 80))) for _ in range(400)))
    log = folder / "log.csv"
    rows = (f"{user},{drawn.randint(1, 60)},5,{time}" for user in range(80) for time in range(12))
    log.write_text("userId,movieId,rating,timestamp\n" + "\n".join(rows) + "\n")
    places = {name: folder / name for name in ("packed", "sudoku", "interactions")} | {"control": folder / "w.h5"}
    for words_ in (
        f"prepare longcontext --dataset-id {text} --vocab-size 300 --out {places['packed']}",
        f"prepare control --samples 2000 --out {places['control']}",
        f"prepare sudoku --size 4 --num-aug 1 --subsample-size 40 --out {places['sudoku']}",
        f"prepare recommend --interactions {log} --out {places['interactions']}",
    ):
        must(command(source, folder / "cache", words_, cwd=folder))
    return {"text": text, **places}


def trained(source: Path, folder: Path, name: str, words: str, data: dict[str, Path]) -> dict[str, Any]:
    run = folder / "runs" / name.replace(" ", "-").replace(",", "")
    line = f"train {words.format(**data)} {DEVICE_LEVERS} --steps 20 --memory 2GiB --quiet --log-every 1 --run {run}"
    if name == "code":
        line += " --max-examples 200"
    if name in ("control", "recommend"):
        line = line.replace(" --loss-chunk 0", "")
    must(command(source, folder / "cache", line, cwd=folder))
    ledger = json.loads((run / "ledger.json").read_text())
    metrics = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in metrics if "loss" in row]
    answer = json.loads(must(command(source, folder / "cache", f"fingerprint {run} --json", cwd=folder)))
    return {
        "fingerprint": answer["fingerprint"],
        "losses": losses,
        "predicted_bytes": ledger["predicted"]["peak_bytes"],
        "measured_bytes": ledger["measured"]["peak_bytes"],
    }


def planned(source: Path, folder: Path, words: str) -> dict[str, Any]:
    """Returns the plan, or the error of a request that cannot be planned at all; that no plan fits is an answer."""
    done = command(source, folder / "plans", f"plan {words} --json", cwd=folder)
    answer = (
        json.loads(done.stdout) if done.stdout else {"refused": done.stderr.strip() or f"ended with {done.returncode}"}
    )
    names = ("fits", "plan", "components", "predicted_peak_bytes", "floor_bytes", "refused")
    return {name: answer.get(name) for name in names}


def pinned(plan: dict[str, Any] | None) -> str:
    """Returns the options that pin the levers of a plan which are not at the value that asks nothing."""
    off = {"remat": "none", "offload": "none", "loss_chunk": 0, "attention_chunk": 0, "layerwise": 0, "fsdp": 1}
    off |= {f"{name}_bits": 32 for name in ("optimizer", "weight", "frozen", "ema")}
    unlevered = ("chip", "accumulation", "devices", "pinned")
    levers = {name: value for name, value in (plan or {}).items() if name not in unlevered and off.get(name) != value}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in levers.items())


def without_weight(planned: dict[str, Any]) -> Any:
    """Returns what must be equal of two plans: not what the process itself weighs, which differs by the day."""
    parts = {name: size for name, size in (planned["components"] or {}).items() if "process" not in name}
    levers = {name: value for name, value in (planned["plan"] or {}).items() if name != "pinned"}
    return planned["fits"], levers, parts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="part of a run's name or a plan's words")
    parser.add_argument("--before-python", default=sys.executable)
    given = parser.parse_args()
    before, after = given.before.resolve(), given.after.resolve()
    PYTHONS[before] = given.before_python
    different = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        folders = {side: folder / side for side in ("before", "after")}
        for place in folders.values():
            place.mkdir(parents=True, exist_ok=True)
        data = prepare_data(before, folder)
        print("| run, 20 steps | fingerprint and losses | predicted before, after | measured before, after |")
        print("|---|---|--:|--:|")
        for name, words in RUNS.items():
            if given.only not in name:
                continue
            one = trained(before, folders["before"], name, words, data)
            two = trained(after, folders["after"], name, words, data)
            same = one["fingerprint"] == two["fingerprint"] and one["losses"] == two["losses"]
            different += not same
            sizes = [[side[key] / 2**20 for side in (one, two)] for key in ("predicted_bytes", "measured_bytes")]
            cells = " | ".join(f"{left:.1f}, {right:.1f} MiB" for left, right in sizes)
            print(f"| {name} | {'same' if same else 'DIFFERENT'} {one['fingerprint'][:12]} | {cells} |", flush=True)
        print("\n| plan | plan and its components | predicted before, after |\n|---|---|--:|")
        for words in PLANS:
            if given.only not in words:
                continue
            filled = words.format(**data)
            one = planned(before, folders["before"], filled)
            two = planned(after, folders["after"], f"{filled} {pinned(one['plan'])}")
            refused = [
                f"{side}: {plan['refused']}" for side, plan in zip(folders, (one, two), strict=True) if plan["refused"]
            ]
            same = not refused and without_weight(one) == without_weight(two)
            different += not same
            verdict = "same" if same else f"DIFFERENT {one} {two}"
            if refused:  # nothing was compared, whether one side refused or both
                verdict = f"REFUSED {'; '.join(refused)}"
            sizes = ", ".join(
                f"{(side['predicted_peak_bytes'] or side['floor_bytes'] or 0) / 2**20:.1f}" for side in (one, two)
            )
            print(f"| `{words}` | {verdict} | {sizes} MiB |", flush=True)
    print(f"\n{different} different")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
