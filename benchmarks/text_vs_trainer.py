"""A small language model on text: `plimsoll train stories` beside `transformers.Trainer`, in turn.

    python benchmarks/text_vs_trainer.py                    all four configurations, two rounds
    python benchmarks/text_vs_trainer.py --configurations 128x4-float32 --rounds 1 --sides plimsoll

Both sides train a model of one shape on the same text, by the same tokenizer, schedule and AdamW, from weights and in
an order of their own. Each is a program in an environment of its own. Our budget is the share of the peer's measured
peak that is our goal (--memory without the peer); where that is refused, what the refusal advises. Prints the figures
and each ratio beside its goal, and writes bench-out/text_vs_trainer.json with every round in it. "others, cores" is
what other programs took meanwhile: figures taken while it is not near 0 prove nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import busy_seconds, conditions, verdict, write
from peers import contract
from peers.environment import FOLDER, ROOT, SIDE_PROGRAM, peer_python
from tokenizers import ByteLevelBPETokenizer
from training_process import trained_within

from plimsoll.models.sizing import inner_width

LOSS_TOLERANCE = 0.02
"""Our final loss over the peer's may differ from 1 by this much: the two begin with other weights."""
FIGURES = ("tokens_per_second", "step_seconds", "peak_resident_bytes", "first_loss", "final_loss")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A model, its effective batch, and what we set out to reach on it."""

    layers: int
    width: int
    heads: int
    seq_len: int
    batch_size: int
    """Windows of one forward pass of the peer; we are free to split the effective batch otherwise."""
    accumulation: int
    bf16: bool
    goal_speed: float
    """Our tokens/s over the peer's, at least."""
    goal_memory: float
    """Our peak resident memory over the peer's, at most."""


SMALL = Configuration(
    layers=4, width=128, heads=4, seq_len=128, batch_size=16, accumulation=4, bf16=False, goal_speed=1.3,
    goal_memory=0.5,
)  # fmt: skip
LARGE = Configuration(
    layers=6, width=384, heads=6, seq_len=256, batch_size=16, accumulation=1, bf16=False, goal_speed=2.4,
    goal_memory=0.4,
)  # fmt: skip
CONFIGURATIONS = {
    "128x4-float32": SMALL,
    "128x4-bf16": replace(SMALL, bf16=True, goal_speed=1.6),
    "384x6-float32": LARGE,
    "384x6-bf16": replace(LARGE, bf16=True, goal_speed=1.15),
}


def main() -> None:
    options = parse_options()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learn_tokens(options, folder)
        for name in options.configurations:
            configuration = CONFIGURATIONS[name]
            rounds = [one_round(configuration, options, folder, number) for number in range(options.rounds)]
            results[name] = summary(configuration, rounds)
    print(table(results))
    write(options.out, {"conditions": conditions(options), "results": results})


def parse_options() -> argparse.Namespace:
    shared = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared"))
    names = list(CONFIGURATIONS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--sides", choices=("both", "peer", "plimsoll"), default="both")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps-small", type=int, default=600, help="updates at 128x4")
    parser.add_argument("--steps-large", type=int, default=60, help="updates at 384x6")
    parser.add_argument("--text", type=Path, default=shared / "data/text/tinystories_train.txt")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the peer")
    parser.add_argument("--peer-optim", default="adamw_torch_fused", help="Trainer's name of its AdamW")
    parser.add_argument("--memory", default="1GiB", help="plimsoll's budget where no peer is run")
    parser.add_argument("--peer-environment", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/text_vs_trainer.json")
    return parser.parse_args()


def learn_tokens(options: argparse.Namespace, folder: Path) -> None:
    """Writes the tokenizer that both sides use, and the text's tokens for the peer."""
    text = options.text.read_text("utf-8")
    tokenizer = ByteLevelBPETokenizer()
    special = ["<|endoftext|>"]
    tokenizer.train_from_iterator([text], vocab_size=options.vocab_size, special_tokens=special, show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "tokens.npy", np.array(tokenizer.encode(text).ids, np.int32))


def one_round(configuration: Configuration, options: argparse.Namespace, folder: Path, number: int) -> dict[str, Any]:
    """Returns what the peer took, then what we did in the share of its memory that is our goal."""
    steps = options.steps_small if configuration.width == SMALL.width else options.steps_large
    learning = {
        "steps": steps,
        "learning_rate": options.learning_rate,
        "warmup_steps": steps // 10,
        "weight_decay": 0.1,
        "beta2": 0.95,
        "clip_norm": 1.0,
        "seed": number,
    }
    figures: dict[str, Any] = {}
    memory = options.memory
    if options.sides != "plimsoll":
        inner = inner_width(configuration.width)
        config = asdict(configuration) | learning | {"vocab_size": options.vocab_size, "inner": inner}
        (folder / "config.json").write_text(json.dumps(config))
        words = [f"--tokens={folder / 'tokens.npy'}", f"--config={folder / 'config.json'}"]
        words += [f"--optim={options.peer_optim}", f"--threads={options.threads}"]
        python = peer_python(options.peer_environment)
        figures["peer"] = run([str(python), SIDE_PROGRAM, "peers.trainer", *words])
        memory = int(configuration.goal_memory * figures["peer"]["peak_resident_bytes"])
    if options.sides != "peer":
        sizes = ("layers", "width", "heads", "seq_len", "batch_size")
        fields = {name: getattr(configuration, name) for name in sizes} | learning
        words = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
        words += [f"--gradient-accumulation-steps={configuration.accumulation}", f"--dataset-id={options.text}"]
        words += [f"--tokenizer={folder / 'tokenizer.json'}", "--eval-every=0"]
        words += [f"--numerics={'mixed' if configuration.bf16 else 'exact'}"]
        tokens = configuration.batch_size * configuration.accumulation * configuration.seq_len
        figures["plimsoll"] = ours(["stories", *words], memory, folder / f"{configuration.width}-{number}", tokens)
    return figures


def ours(words: list[str], memory: int | str, run: Path, tokens_per_step: int) -> dict[str, Any]:
    """Trains by the command line, and returns the peer's figures of it, its plan and its budget."""
    before, started = _busy_and_own_seconds(), time.perf_counter()
    found = trained_within(words, memory, run)
    rows = [row for row in found.rows if "loss" in row]
    figures = contract.result_line(
        losses=[row["loss"] for row in rows],
        step_seconds=[row["step_seconds"] for row in rows],
        tokens_per_step=tokens_per_step,
        versions={"python": sys.version.split()[0]},
        peak_bytes=found.peak,
    )
    plan = {"plan": found.planned["plan"], "budget_bytes": found.ledger["budget_bytes"]}
    return json.loads(figures) | plan | {"predicted_peak_bytes": found.predicted} | _others(before, started)


def run(command: list[str]) -> dict[str, Any]:
    """Returns what the program printed last, and how many cores others took. Its log is shown if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "HF_HUB_OFFLINE": "1"}
    before, started = _busy_and_own_seconds(), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: exit code {done.returncode} from {' '.join(command)}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1]) | _others(before, started)


def _others(before: tuple[float, float], started: float) -> dict[str, float]:
    busy, own = (after - start for after, start in zip(_busy_and_own_seconds(), before, strict=True))
    return {"cores_taken_by_others": max(0.0, busy - own) / (time.perf_counter() - started)}


def _busy_and_own_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine, and of our finished children."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return busy_seconds(), own.ru_utime + own.ru_stime


def summary(configuration: Configuration, rounds: list[dict[str, dict]]) -> dict[str, Any]:
    """Returns medians over the rounds; with both sides, their ratios and whether the goals are met."""
    names = (*FIGURES, "cores_taken_by_others")
    medians = {
        side: {name: statistics.median(one[side][name] for one in rounds) for name in names} for side in rounds[0]
    }
    result = {"configuration": asdict(configuration), "medians": medians, "rounds": rounds}
    if len(medians) == 2:
        ratios = {figure: medians["plimsoll"][figure] / medians["peer"][figure] for figure in FIGURES}
        result["ratios"] = ratios
        result["met"] = {
            "speed": ratios["tokens_per_second"] >= configuration.goal_speed,
            "memory": ratios["peak_resident_bytes"] <= configuration.goal_memory,
            "loss": abs(ratios["final_loss"] - 1) <= LOSS_TOLERANCE,
        }
    return result


def table(results: dict[str, dict]) -> str:
    """Returns lines for each configuration: the sides, then each ratio beside its goal."""
    lines = []
    for name, result in results.items():
        for side, row in result["medians"].items():
            lines.append(
                f"{name:14} {side:9} {row['tokens_per_second']:9,.0f} tokens/s, {row['step_seconds']:.3f} s a step,"
                f" peak {row['peak_resident_bytes'] / 2**20:7,.0f} MiB, loss {row['first_loss']:.4f} to"
                f" {row['final_loss']:.4f}, others, cores {row['cores_taken_by_others']:.2f}"
            )
        if "ratios" in result:
            ratios, goals = result["ratios"], result["configuration"]
            met = {goal: verdict(met=reached) for goal, reached in result["met"].items()}
            lines += [
                f"{name}: tokens/s over the peer's {ratios['tokens_per_second']:.2f}"
                f" (goal, at least {goals['goal_speed']:g}: {met['speed']})",
                f"{name}: peak over the peer's {ratios['peak_resident_bytes']:.2f}"
                f" (goal, at most {goals['goal_memory']:g}: {met['memory']})",
                f"{name}: final loss over the peer's {ratios['final_loss']:.5f}"
                f" (goal 1 +- {LOSS_TOLERANCE:g}: {met['loss']})",
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
