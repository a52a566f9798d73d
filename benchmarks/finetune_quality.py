"""A small published model on a text that it does not know: adapters, the whole model, and training from scratch.

    PYTHONPATH=src:benchmarks python benchmarks/finetune_quality.py [--seconds 60] [--only lora-8 scratch]

The 656K Llama of TinyStories on Python's own library, 8 rows of 256 tokens a step, each way for the same processor
time: a probe measures the processor seconds of a step, and the steps of the run follow, so that each has its whole
schedule. The loss is that of every tenth file (nats a token), the best of some learning rates; the base's is that of
the untouched model. Prints a table and writes bench-out/finetune_quality.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.environment import ROOT
from random_model import made, shared
from text_vs_trainer import conditions
from training_process import ENVIRONMENT, PLIMSOLL, plimsoll, trained

PROBE = 60
"""Steps of the short run that measures what a step takes."""
UNTIMED = 10
"""Its first steps, which are left out."""


@dataclass(frozen=True)
class Way:
    """A way to a model of the text. `words` are its options, `rates` the learning rates that are tried."""

    words: tuple[str, ...]
    rates: tuple[float, ...]
    random: bool = False
    """Whether it begins with random weights instead of the published ones."""


WAYS = {
    "lora-8": Way(("--lora-rank=8",), (2e-3, 5e-3, 1e-2)),
    "whole": Way(("--lora-rank=0",), (1e-3, 2e-3, 5e-3)),
    "scratch": Way(("--lora-rank=0",), (1e-3, 2e-3, 5e-3), random=True),
}


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        given = Inputs(options, Path(name))
        rows = [given.measured(way, WAYS[way]) for way in options.only]
    print(table(rows))
    out = ROOT / "bench-out/finetune_quality.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"conditions": conditions(options), "rows": rows}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="processor time of the steps of a run")
    parser.add_argument("--memory", default="450MiB")
    parser.add_argument("--files", type=int, default=400, help="of Python's library, the first by name")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    return parser.parse_args()


class Inputs:
    """Models and records of the comparison, written into a folder."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.published = shared() / "data/weights/hf_tinystories_656K"
        config = json.loads((self.published / "config.json").read_text())
        self.random = made(folder / "random", config, speaks_as=self.published)
        self.records, self.held_out = folder / "python.jsonl", folder / "held-out.jsonl"
        library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: options.files]
        records = [json.dumps({"text": file.read_text("utf-8", errors="ignore")}) + "\n" for file in library]
        self.held_out.write_text("".join(records[::10]))
        self.records.write_text("".join(record for number, record in enumerate(records) if number % 10))

    def measured(self, name: str, way: Way) -> dict[str, Any]:
        """Returns the row of a way: steps, processor seconds, and the losses by learning rate."""
        a_step = self._trained(way, way.rates[0], PROBE, self.folder / f"{name}-probe")["processor_seconds_a_step"]
        steps = max(1, round(self.options.seconds / a_step))
        row: dict[str, Any] = {"way": name, "steps": steps, "processor_seconds_a_step": a_step, "losses": {}}
        for rate in way.rates:
            run = self.folder / f"{name}-{rate:g}"
            found = self._trained(way, rate, steps, run)
            row["losses"][f"{rate:g}"] = found["loss"]
            row |= {name: found[name] for name in found if name != "loss"}
            print(f"{name} at {rate:g}: {found['loss']:.4f} after {steps} steps", flush=True)
        if not way.random and "--lora-rank=0" not in way.words:
            row["base_loss"] = json.loads(plimsoll("evaluate", run, "--json"))["base_loss"]
        return row

    def _trained(self, way: Way, rate: float, steps: int, run: Path) -> dict[str, Any]:
        model = self.random if way.random else self.published
        words = [f"--pretrained={model}", f"--dataset-id={self.records}", f"--validation-id={self.held_out}"]
        words += [
            "--seq-len=256",
            "--batch-size=8",
            f"--learning-rate={rate:g}",
            f"--steps={steps}",
            f"--memory={self.options.memory}",
            f"--run={run}",
        ]
        command = [*PLIMSOLL, "train", "finetune", *words, *way.words, "--eval-every=0", "--log-every=1", "--quiet"]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=errors, text=True)
            a_step = seconds_a_step(process, run / "metrics.jsonl")
            errors.seek(0)
            said = errors.read()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{said[-2000:]}")
        found = trained(run)
        return {
            "processor_seconds_a_step": a_step,
            "loss": next(row["validation_loss"] for row in reversed(found.rows) if "validation_loss" in row),
            "parameters": found.planned["parameters"],
            "peak_bytes": found.peak,
            "predicted_bytes": found.predicted,
        }


def seconds_a_step(process: subprocess.Popen[str], metrics: Path) -> float:
    """Waits for a run, and returns the processor seconds of a step after the first ones."""
    seen: dict[int, float] = {}
    while process.poll() is None:
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        losses = [json.loads(row)["step"] for row in rows[-3:] if '"loss"' in row and row.endswith("}")]
        if losses and losses[-1] >= UNTIMED:
            seen.setdefault(losses[-1], processor_seconds(process.pid))
        time.sleep(0.02)
    if len(seen) < 2:
        return math.nan
    first, last = min(seen), max(seen)
    return (seen[last] - seen[first]) / (last - first)


def processor_seconds(pid: int) -> float:
    """Returns the processor time of a process so far, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':10}{'steps':>8}{'CPU s a step':>14}  validation loss by learning rate"]
    base = next((row["base_loss"] for row in rows if "base_loss" in row), None)
    if base is not None:
        lines.append(f"{'base':10}{'':8}{'':14}  {base:.3f}")
    for row in rows:
        losses = ", ".join(f"{rate}: {loss:.3f}" for rate, loss in row["losses"].items())
        lines.append(f"{row['way']:10}{row['steps']:>8,}{row['processor_seconds_a_step']:>14.3f}  {losses}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
