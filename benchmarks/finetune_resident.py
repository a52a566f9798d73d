"""QLoRA of a model of SmolLM2-135M's shape inside a budget of resident memory: predicted, measured, killed and resumed.

    PYTHONPATH=src:benchmarks python benchmarks/finetune_resident.py [--memory 600MiB] [--steps 50] [--no-kill]

The model has random weights (random_model.py); 4 rows of 512 tokens a step, NF4 also for the embedding, without which
no plan fits, adapters of rank 16 beside every linear layer. One run goes through. Another is killed with SIGKILL behind
its second checkpoint and continued by the same command: its losses and its exported adapter have to be the first one's
to the bit. Writes bench-out/finetune_resident.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from goals import verdict
from peers.environment import ROOT
from random_model import made, shared, text_records
from text_vs_trainer import conditions
from training_process import ENVIRONMENT, MIB, PLIMSOLL, plimsoll, trained

from plimsoll.models.pretrained.find import known_configs

GOAL = 0.03
"""Predicted over measured may differ from 1 by this much."""


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        whole = folder / "whole"
        command = prepared(options, folder)
        subprocess.run([*command, f"--run={whole}"], env=ENVIRONMENT, stdout=sys.stderr, check=True)
        result = figures(whole, options)
        print(said(result), flush=True)
        if options.kill:
            result |= resumed(command, whole, folder / "killed", options)
            ended = "the same to the bit" if result["same"] else "DIFFERENT"
            print(f"killed after step {result['killed_after']}, continued: {ended}")
    out = ROOT / "bench-out/finetune_resident.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"conditions": conditions(options), **result}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--like", default="HuggingFaceTB/SmolLM2-135M", help="a model of plimsoll's table")
    parser.add_argument("--memory", default="600MiB")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--embedding-bits", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="keep model and runs here")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="leave the second run out")
    return parser.parse_args()


def prepared(options: argparse.Namespace, folder: Path) -> list[str]:
    """Makes model and records, and returns the command of a run without its folder."""
    model, records = folder / "model", folder / "stories.jsonl"
    if not model.exists():
        made(model, known_configs()[options.like.lower()])
    text_records(records, files=[shared() / "data/text/tinystories_train.txt"], characters=2_600)
    words = [f"--pretrained={model}", f"--dataset-id={records}", "--frozen-bits=4", f"--memory={options.memory}"]
    words += [
        f"--{name}={getattr(options, name.replace('-', '_'))}"
        for name in ("seq-len", "batch-size", "steps", "embedding-bits")
    ]
    return [*PLIMSOLL, "train", "finetune", *words, f"--save-every={every(options)}", "--log-every=1", "--quiet"]


def every(options: argparse.Namespace) -> int:
    """Returns the steps between checkpoints."""
    return max(1, options.steps // 5)


def figures(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    found = trained(run)
    ledger, steps = found.ledger, [row["step_seconds"] for row in found.rows if "loss" in row]
    return {
        "budget_bytes": ledger["budget_bytes"],
        "predicted_bytes": found.predicted,
        "peak_bytes": found.peak,
        "plan": found.planned["plan"],
        "phase": ledger["phase"],
        "components": ledger["components"],
        "step_seconds": sorted(steps)[len(steps) // 2],
        "loss": found.loss,
        "steps": options.steps,
    }


def said(result: dict[str, Any]) -> str:
    off, budget = result["predicted_bytes"] / result["peak_bytes"] - 1, result["budget_bytes"]
    inside = "inside" if result["peak_bytes"] <= budget else "OVER"
    met = verdict(met=abs(off) <= GOAL)
    return (
        f"{result['steps']} steps: predicted {result['predicted_bytes'] / MIB:.1f} MiB, measured"
        f" {result['peak_bytes'] / MIB:.1f} ({off:+.1%}, {met}), {inside} the budget of"
        f" {budget / MIB:.0f} MiB; {result['step_seconds']:.2f} s a step, loss {result['loss']:.4f}"
    )


def resumed(command: list[str], whole: Path, run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kills a run behind its second checkpoint, continues it, and says whether it became the other one."""
    killed_after = killed([*command, f"--run={run}"], run, 2 * every(options) + 1)
    subprocess.run([*command, f"--run={run}"], env=ENVIRONMENT, stdout=sys.stderr, check=True)
    same = losses(run) == losses(whole) and adapter(run) == adapter(whole)
    return {"killed_after": killed_after, "same": same, "sessions_peak_bytes": trained(run).peak}


def killed(command: list[str], run: Path, step: int) -> int:
    """Runs a command until its metrics have this step, kills it, and returns the last step that they had."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=sys.stderr, start_new_session=True)
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and (last := max(losses(run), default=0)) > step:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return last
        time.sleep(0.1)
    sys.exit(f"error: {run} ended with code {process.returncode} before step {step}")


def losses(run: Path) -> dict[int, float]:
    """Returns the losses by step that a run has written, the last of each."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def adapter(run: Path) -> bytes:
    """Returns the exported adapter's weights."""
    out = run.parent / f"{run.name}-adapter"
    if not out.exists():
        plimsoll("export", run, "--adapter", out)
    return (out / "adapter_model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
