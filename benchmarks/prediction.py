"""Predicted against measured peak of whole training processes: how far the planner's bytes are from the kernel's.

    python benchmarks/prediction.py --seed 1 --count 100 [--runs 3] [--resume]
    python benchmarks/prediction.py --seed 1 --summary
    python benchmarks/prediction.py --windows windows.h5 --count 30      # the recipe control, on this file
    python benchmarks/prediction.py --puzzles sets --count 30     # recipes of puzzles, on the sets in this folder
    python benchmarks/prediction.py --packed folder --count 30    # the recipe longcontext, on this packed text
    python benchmarks/prediction.py --interactions folder --pretrained model --count 30    # the recipe recommend
    python benchmarks/prediction.py --records chats.jsonl --count 30    # the recipe finetune, around models made for it

Configurations are drawn at random (drawn.py). Each is planned without a budget and with none to speak of, which gives
the unconstrained peak and the floor; a budget is drawn between 0.9 of the floor and 1.2 of the peak; then the command
line plans and trains under it, `--runs` times, each time in a process of its own with evaluations and two saves in
it, and the largest `VmHWM` counts. What is refused runs with the memory that the refusal advises. `--near-floor`
draws budgets from 8 MiB below the floor to 24 above it.

A row is written to bench-out/ as soon as it is there; `--resume` goes on behind them. prediction_figures.py sums up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drawn import (
    Configuration,
    draw,
    draw_control,
    draw_finetune,
    draw_longcontext,
    draw_puzzles,
    draw_recommend,
    effective_batch,
)
from prediction_figures import line, summary, worst
from training_process import ENVIRONMENT, MIB, PLIMSOLL, plan_words, prepared_copy, trained, watch

PLAN_SECONDS, RUN_SECONDS = 3600, 3600
MOST_BYTES = 3 * 2**30
"""Budgets stay below it: the machine has other users."""
NEAR_FLOOR = (-8, 24)
"""MiB beyond the floor."""


def main() -> None:
    given = arguments()
    others = {
        "control-": given.windows,
        "puzzles-": given.puzzles,
        "longcontext-": given.packed,
        "recommend-": given.interactions,
        "finetune-": given.records,
    }
    drawn = next((name for name, data in others.items() if data), "")
    kind = f"{drawn}{'near-floor-' if given.near_floor else ''}{given.seed}"
    out = Path("bench-out") / f"prediction-{kind}.jsonl"
    rows = [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []
    if not given.summary:
        rows = measure_all(given, out, rows)
    print(f"\n{summary(rows)}\n\nthe worst, explained\n{worst(rows)}")


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(os.environ.get("PLIMSOLL_SHARED", "../shared"))
    options.add_argument("--text", default=str(shared / "data/text/tinystories_train.txt"))
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--only", type=int, nargs="*", help="numbers of the configurations to run")
    options.add_argument("--resume", action="store_true", help="keep the rows that are there, run what is missing")
    options.add_argument("--summary", action="store_true", help="run nothing: the figures of the rows that are there")
    options.add_argument("--windows", help="a file of `plimsoll prepare control`: draw that recipe instead")
    options.add_argument("--puzzles", help="a folder of sets of `plimsoll prepare sudoku|maze|arc`: draw their recipes")
    options.add_argument("--packed", help="a folder of `plimsoll prepare longcontext`: draw that recipe instead")
    options.add_argument("--interactions", help="a folder of `plimsoll prepare recommend`: draw that recipe instead")
    options.add_argument("--pretrained", help="a folder of a Llama or a Gemma that half of those stand on")
    options.add_argument("--records", help="a file of records: draw finetune on it, around models in --models")
    options.add_argument("--models", default="bench-out/models", help="where those of --records are made")
    options.add_argument("--near-floor", action="store_true", help="budgets near what a refusal names")
    return options.parse_args()


def measure_all(given: argparse.Namespace, out: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if rows and not given.resume:
        sys.exit(f"{out} holds {len(rows)} rows: --resume goes on behind them, --summary sums them up, or move it away")
    done = {(row["number"], row["label"]) for row in rows}
    out.parent.mkdir(exist_ok=True)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    for number, label, configuration in random_ones(given):
        if (number, label) in done or (given.only is not None and number not in given.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            start = {"number": number, "label": label, "commit": commit, "words": " ".join(configuration.words())}
            rows.append(start | Measured(given, configuration, Path(folder)).row())
        print(line(rows[-1]), flush=True)
        with out.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    return rows


def random_ones(given: argparse.Namespace) -> Iterator[tuple[int, str, Configuration]]:
    sets = puzzle_sets(given.puzzles) if given.puzzles else {}
    for number in range(given.count):
        if given.windows:
            configuration = draw_control(given.seed, number, windows=given.windows)
        elif given.puzzles:
            configuration = draw_puzzles(given.seed, number, sets=sets)
        elif given.packed:
            configuration = draw_longcontext(
                given.seed, number, packed=given.packed, vocab_size=packed_vocabulary(given.packed)
            )
        elif given.interactions:
            configuration = draw_recommend(given.seed, number, data=given.interactions, pretrained=given.pretrained)
        elif given.records:
            configuration, model = draw_finetune(given.seed, number, records=given.records, models=given.models)
            make_model(Path(configuration.options["pretrained"]), model)
        else:
            configuration = draw(given.seed, number, text=given.text)
        yield number, label_of(configuration), configuration


def make_model(folder: Path, config: dict[str, Any]) -> None:
    """Makes the model's folder where it is not there."""
    if not folder.exists():
        from random_model import made

        made(folder, config)


def puzzle_sets(folder: str) -> dict[str, dict[str, Any]]:
    """Every set in the folder, and what it says of itself."""
    found = {
        str(path.parents[1]): json.loads(path.read_text()) for path in sorted(Path(folder).glob("*/train/dataset.json"))
    }
    return found or sys.exit(f"--puzzles {folder} holds no sets: make some with `plimsoll prepare sudoku --out FOLDER`")


def packed_vocabulary(folder: str) -> int:
    return json.loads((Path(folder) / "meta.json").read_text())["counts"]["vocab_size"]


def label_of(configuration: Configuration) -> str:
    sizes = configuration.options
    if "lora_rank" in sizes:
        model = Path(sizes["pretrained"]).name.split("-")[1]
        return f"finetune {model} r{sizes['lora_rank']} {effective_batch(sizes)}x{sizes['seq_len']}"
    size = f"{sizes['width']}x{sizes['layers']}" if "width" in sizes else "pretrained"
    if "validation_users" in sizes:
        return f"recommend {size} {sizes['softmax']} {effective_batch(sizes)}x{sizes['seq_len']}"
    if "variant" in sizes:
        cycles = f"{sizes['high_cycles']}x{sizes['low_cycles']}"
        name = f"{Path(sizes['data']).name} {sizes['variant']}"
        return f"{name} {size} {cycles} {effective_batch(sizes)}x{sizes['seq_len']}"
    if "mix_chunks" in sizes:
        return f"control {size} m{sizes['mix_chunks']} {effective_batch(sizes)}"
    if "states" in sizes:
        return f"longcontext {size} s{sizes['states']} {effective_batch(sizes)}x{sizes['seq_len']}"
    return f"{configuration.preset} {size} v{sizes['vocab_size']} {effective_batch(sizes)}x{sizes['seq_len']}"


class Measured:
    """One configuration, planned and run; `folder` is its own and empty."""

    def __init__(self, given: argparse.Namespace, configuration: Configuration, folder: Path) -> None:
        self.given, self.configuration, self.folder = given, configuration, folder
        half = str(max(1, given.steps // 2))
        self.session = ["--save-every", half, "--eval-every", half, "--quiet"]
        self.words = [*configuration.words(), "--steps", str(given.steps)]

    def row(self) -> dict[str, Any]:
        """Under a budget that is drawn."""
        row: dict[str, Any] = {}
        try:
            row |= self.explored()
            near = near_the_floor if self.given.near_floor else drawn_budget
            budget = near(self.configuration, row["floor"], row["unconstrained"])
        except Failed as problem:
            return row | {"outcome": "failed", "said": str(problem)}
        row |= {"budget": budget, "memory": budget, "outcome": "ran"}
        said = self.run_all(row)
        if advised := re.search(r"no plan for .* fits in .*you could: --memory (\w+)", said, re.DOTALL):
            row |= {"outcome": "refused", "memory": mebibytes(advised[1])}
            said = self.run_all(row)
        if said and row["outcome"] == "ran":
            row["outcome"] = "failed"
        return row | ({"said": said[-1000:]} if said else {})

    def explored(self) -> dict[str, int]:
        """Returns, from the compiler alone, the fastest plan without a budget, and the least that a refusal names."""
        free = self.planned("1TiB")["predicted_peak_bytes"]
        waiting = free
        if "async_save" not in self.configuration.pins:
            waiting = self.planned("1TiB", "--async-save", "False")["predicted_peak_bytes"]
        return {"unconstrained": free, "unconstrained_waiting": waiting, "floor": self.planned("1MiB")["floor_bytes"]}

    def planned(self, memory: str, *more: str) -> dict[str, Any]:
        command = [*PLIMSOLL, "plan", *self.words, *more, "--memory", memory, "--json"]
        try:
            done = subprocess.run(
                command, check=False, env=ENVIRONMENT, capture_output=True, text=True, timeout=PLAN_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"planning took longer than {PLAN_SECONDS} s") from None
        if not done.stdout.strip():
            raise Failed(done.stderr.strip())
        return json.loads(done.stdout)

    def run_all(self, row: dict[str, Any]) -> str:
        """Fills the row in; empty, or what the first run that did not end well said."""
        first = self.folder / f"{row['memory']}-0"
        peaks: list[int] = []
        for time in range(self.given.runs):
            run = prepared_copy(first, self.folder / f"{row['memory']}-{time}") if time else first
            ended = watch(self.command(run, row["memory"]), seconds=RUN_SECONDS)
            if ended.code:
                return ended.said or f"ended with code {ended.code}"
            found = trained(run)
            peaks.append(found.peak)
            if found.peak == max(peaks):
                largest = found
        row |= {
            "plan": plan_words(largest.planned["plan"]),
            "phase": largest.ledger["phase"],
            "phases": largest.ledger["predicted"]["phases"],
            "measured_phases": largest.ledger["measured"]["phases"],
            "components": largest.ledger["components"],
            "predicted": largest.predicted,
            "peaks": peaks,
        }
        return ""

    def command(self, run: Path, memory: int) -> list[str]:
        return [*PLIMSOLL, "train", *self.words, *self.session, "--memory", str(memory), "--run", str(run)]


class Failed(Exception):
    """Failure of a configuration that is neither planned nor refused."""


def drawn_budget(configuration: Configuration, floor: int, unconstrained: int) -> int:
    """Whole MiB, so that what is printed is what was asked for."""
    low, high = 0.9 * floor, max(floor, min(1.2 * unconstrained, MOST_BYTES))
    return round(math.exp(math.log(low) + configuration.budget_at * math.log(high / low)) / MIB) * MIB


def near_the_floor(configuration: Configuration, floor: int, _unconstrained: int) -> int:
    """Whole MiB."""
    below, above = NEAR_FLOOR
    return round(floor / MIB + below + configuration.budget_at * (above - below)) * MIB


def mebibytes(text: str) -> int:
    """Bytes of `412MiB` or `2GiB`, as refusals advise."""
    number, unit = re.fullmatch(r"(\d+)([MG]iB)", text).groups()
    return int(number) * (MIB if unit == "MiB" else 1024 * MIB)


if __name__ == "__main__":
    main()
