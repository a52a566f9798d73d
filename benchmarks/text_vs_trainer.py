"""A small language model on text: plimsoll beside `transformers.Trainer`, same start, same batches, in turn.

    python benchmarks/text_vs_trainer.py                    all four configurations, two rounds
    python benchmarks/text_vs_trainer.py --configurations 128x4-float32 --rounds 1 --sides peer

Each side is a program of its own in an environment of its own (benchmarks/peers/contract.py says what it is
given and must print). Our budget is the share of the peer's measured peak that is our goal; if that is refused,
a tenth above the smallest that is not, and the JSON has both (refused_bytes, floor_bytes). Prints the
figures and each ratio beside its goal, and writes bench-out/text_vs_trainer.json with every round in it.
"others, cores" is what other programs took meanwhile: figures taken while it is not near 0 prove nothing.
"""

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

import numpy as np
from measuring import busy_seconds, conditions, verdict, write
from peers.environment import FOLDER, ROOT, SIDE_PROGRAM, peer_python
from peers.text import encode, initial_weights, order_of_windows

LOSS_TOLERANCE = 0.01
"""Our final loss over the peer's may differ from 1 by this much."""

FIGURES = ("tokens_per_second", "step_seconds", "peak_resident_bytes", "first_loss", "final_loss")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A model, its effective batch, and what we set out to reach on it."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    seq_len: int
    batch_size: int
    """Windows of one forward pass of the peer; we are free to split the effective batch otherwise."""
    accumulation: int
    steps: int
    bf16: bool
    goal_speed: float
    """Our tokens/s over the peer's, at least."""
    goal_memory: float
    """Our peak resident memory over the peer's, at most."""


def configurations(*, steps_small: int, steps_large: int) -> dict[str, Configuration]:
    small = Configuration(
        layers=4, hidden_size=128, intermediate_size=384, heads=4, seq_len=128, batch_size=16, accumulation=4,
        steps=steps_small, bf16=False, goal_speed=1.3, goal_memory=0.5,
    )  # fmt: skip
    large = Configuration(
        layers=6, hidden_size=384, intermediate_size=1024, heads=6, seq_len=256, batch_size=16,
        accumulation=1, steps=steps_large, bf16=False, goal_speed=2.4, goal_memory=0.4,
    )  # fmt: skip
    return {
        "128x4-float32": small,
        "128x4-bf16": replace(small, bf16=True, goal_speed=1.6),
        "384x6-float32": large,
        "384x6-bf16": replace(large, bf16=True, goal_speed=1.15),
    }


def main() -> None:
    options = parse_options()
    chosen = configurations(steps_small=options.steps_small, steps_large=options.steps_large)
    sides = ["peer", "plimsoll"] if options.sides == "both" else [options.sides]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.npy"
        np.save(tokens, encode(options.text.read_text(encoding="utf-8"), vocab_size=options.vocab_size))
        for name in options.configurations:
            given = write_inputs(chosen[name], tokens, Path(folder) / name, options=options)
            rounds = []
            for number in range(options.rounds):
                rounds.append(one_round(chosen[name], given, sides, options=options))  # A B A B
                print(f"{name}: round {number + 1} of {options.rounds} done", file=sys.stderr)
            results[name] = summary(chosen[name], rounds)
    print(table(results))
    write(options.out, {"conditions": conditions(options), "results": results})


def parse_options() -> argparse.Namespace:
    shared = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared"))
    names = list(configurations(steps_small=0, steps_large=0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--sides", choices=("both", "peer", "plimsoll"), default="both")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps-small", type=int, default=600, help="updates at 128x4")
    parser.add_argument("--steps-large", type=int, default=60, help="updates at 384x6")
    parser.add_argument("--text", type=Path, default=shared / "data/text/tinystories_train.txt")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--peer-optim", default="adamw_torch_fused", help="Trainer's name of its AdamW")
    parser.add_argument(
        "--memory", help="plimsoll's budget; default: our goal's share of the peer's peak, else what is available"
    )
    parser.add_argument("--peer-environment", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/text_vs_trainer.json")
    return parser.parse_args()


def write_inputs(configuration: Configuration, tokens: Path, folder: Path, *, options) -> list[str]:
    """Writes what both sides read, and returns the arguments that say so."""
    folder.mkdir()
    model = {
        "hidden_size": configuration.hidden_size,
        "intermediate_size": configuration.intermediate_size,
        "layers": configuration.layers,
        "heads": configuration.heads,
        "vocab_size": options.vocab_size,
        "seq_len": configuration.seq_len,
        "tie_embeddings": True,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
    }
    random = np.random.default_rng(options.seed)
    windows = (len(np.load(tokens, mmap_mode="r")) - 1) // configuration.seq_len
    shape = (configuration.steps, configuration.batch_size * configuration.accumulation)
    (folder / "config.json").write_text(json.dumps(model))
    np.save(folder / "order.npy", order_of_windows(windows, shape, random))
    np.savez(folder / "weights.npz", **initial_weights(model, random))
    values = {
        "tokens": tokens,
        "order": folder / "order.npy",
        "config": folder / "config.json",
        "weights": folder / "weights.npz",
        "batch-size": configuration.batch_size,
        "accumulation": configuration.accumulation,
        "steps": configuration.steps,
        "learning-rate": options.learning_rate,
        "warmup": configuration.steps // 10,
        "threads": options.threads,
    }
    flags = [f"--{name}={value}" for name, value in values.items()]
    return flags + ["--bf16"] * configuration.bf16


def one_round(configuration: Configuration, given: list[str], sides: list[str], *, options) -> dict:
    """The peer, then us in the share of the peer's memory that is our goal (alone: in --memory, if given)."""
    found, memory = {}, options.memory
    if "peer" in sides:
        found["peer"] = run_peer(given, options=options)
        memory = memory or str(int(configuration.goal_memory * found["peer"]["peak_resident_bytes"]))
    if "plimsoll" in sides:
        found["plimsoll"] = run_plimsoll([*given, *([f"--memory={memory}"] if memory else [])])
    return found


def run_peer(given: list[str], *, options) -> dict:
    python = peer_python(options.peer_environment)
    return run([str(python), SIDE_PROGRAM, "peers.trainer", f"--optim={options.peer_optim}", *given])


def run_plimsoll(given: list[str]) -> dict:
    return run([sys.executable, SIDE_PROGRAM, "ours_text", *given])


def run(command: list[str]) -> dict:
    """Returns what the program printed last, and how many cores others took. Its log is shown if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "HF_HUB_OFFLINE": "1"}
    before = _busy_and_own_seconds()
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: exit code {done.returncode} from {' '.join(command)}\n{done.stderr[-4000:]}")
    elapsed = time.perf_counter() - started
    busy, own = (after - start for after, start in zip(_busy_and_own_seconds(), before, strict=True))
    others = max(0.0, busy - own) / elapsed
    return json.loads(done.stdout.splitlines()[-1]) | {"cores_taken_by_others": others}


def _busy_and_own_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine, and of our finished children."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return busy_seconds(), own.ru_utime + own.ru_stime


def summary(configuration: Configuration, rounds: list[dict[str, dict]]) -> dict:
    """Medians over the rounds, side by side; with both sides, their ratios and whether the goals are met."""
    medians = {
        side: {
            figure: statistics.median(one[side][figure] for one in rounds)
            for figure in (*FIGURES, "cores_taken_by_others")
        }
        for side in rounds[0]
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
    lines = [_line("", "", "tokens/s", "step, s", "peak, MiB", "first loss", "final loss", "others, cores")]
    for name, result in results.items():
        for side, row in result["medians"].items():
            speed, seconds = f"{row['tokens_per_second']:,.0f}", f"{row['step_seconds']:.3f}"
            peak, others = f"{row['peak_resident_bytes'] / 2**20:,.0f}", f"{row['cores_taken_by_others']:.2f}"
            losses = f"{row['first_loss']:.4f}", f"{row['final_loss']:.4f}"
            lines.append(_line(name, side, speed, seconds, peak, *losses, others))
        if "ratios" in result:
            lines += _ratio_lines(name, result["ratios"], result["met"], result["configuration"])
    return "\n".join(lines)


def _ratio_lines(name: str, ratios: dict, met: dict, configuration: dict) -> list[str]:
    said = {goal: verdict(met=reached) for goal, reached in met.items()}
    speed, peak, loss = (ratios[figure] for figure in ("tokens_per_second", "peak_resident_bytes", "final_loss"))
    least, most = configuration["goal_speed"], configuration["goal_memory"]
    return [
        f"{name}: tokens/s over the peer's {speed:.2f} (goal, at least {least:g}: {said['speed']})",
        f"{name}: peak over the peer's {peak:.2f} (goal, at most {most:g}: {said['memory']})",
        f"{name}: final loss over the peer's {loss:.5f} (goal 1 +- {LOSS_TOLERANCE:g}: {said['loss']})",
    ]


def _line(name: str, side: str, *cells: str) -> str:
    widths = (15, 8, 15, 11, 16, 14)
    return f"{name:14} {side:9}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


if __name__ == "__main__":
    main()
