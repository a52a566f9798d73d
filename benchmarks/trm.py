"""A supervision step of the Tiny Recursive Model, forward and backward, beside the same blocks in torch.

    python benchmarks/trm.py [--rounds 9] [--variants attention mlp] [--sides torch-float32 plimsoll-float32]

At the published size (width 512, 3 x 6 cycles, 16 puzzles of Sudoku at a time, random weights that both sides read from
one file). Each side is a program of its own that waits for its turn (benchmarks/peers/programs.py), torch's in an
environment of its own; steps are timed in turn, A B C A B C. The losses of the float32 sides are compared; that ours
are the published code's is held by tests/recipes/puzzles/test_trm_golden.py. `+remat` computes the last round again in
the backward pass; `+4x4` takes four examples at a time, four times, `+2x8` two, which is for the plan to choose. Peaks
are `VmHWM` of the process with everything in it; ours load the step they were compiled to, as training does. Prints a
table for each variant and writes bench-out/trm.json.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import busy_seconds, conditions, verdict, write
from peers.environment import ROOT, SIDE_PROGRAM, TRM, TRM_FOLDER, peer_python
from peers.programs import Program

sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests/support"))

from plimsoll.processes.environment import for_processes
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.specs import PuzzleSpec
from published_trm import TABLE, names

EXAMPLES = 16
BUFFERS = {TABLE: "puzzle_emb"}
"""Published names that files shorten."""
VARIANTS = ("attention", "mlp")
FARTHEST = 1e-4
"""Most that losses in float32 may differ from torch's, as a share."""
SIDES = (
    "torch-float32",
    "plimsoll-float32",
    "plimsoll-float32+remat",
    "plimsoll-float32+4x4",
    "torch-bfloat16",
    "plimsoll-bfloat16",
    "plimsoll-bfloat16+remat",
    "plimsoll-bfloat16+4x4",
    "plimsoll-bfloat16+2x8",
)
GOALS = {
    ("attention", "plimsoll-float32+4x4"): {"time": 0.6},
    ("mlp", "plimsoll-float32+4x4"): {"time": 0.6},
    ("attention", "plimsoll-bfloat16+4x4"): {"time": 0.8},
    ("mlp", "plimsoll-bfloat16+4x4"): {"time": 0.8},
    ("attention", "plimsoll-bfloat16+remat"): {"time": 0.95, "memory": 0.5},
}
"""At most, over torch in the same precision; micro-batches are what a plan takes."""

Side = tuple[list[str], dict[str, str]]
"""Its command and its environment: torch has its own allocator's defaults, ours what training runs under."""


def main() -> int:
    options = parsed()
    torch = dict(os.environ) | {"PYTHONPATH": str(ROOT / "benchmarks"), "OMP_NUM_THREADS": str(options.threads)}
    ours = for_processes("cpu", torch)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        ours["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/compiled"
        for variant in options.variants:
            file = Path(folder) / f"{variant}.npz"
            np.savez(file, **drawn(variant))
            sides = {
                name: (command(name, threads=options.threads), torch if name.startswith("torch") else ours)
                for name in options.sides
            }
            results[variant] = measured(sides, file, rounds=options.rounds)
            print(table(variant, results[variant]), flush=True)
    write(options.out, {"conditions": conditions(options), "results": results})
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="VARIANT")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, metavar="SIDE")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/trm.json")
    return parser.parse_args()


def command(side: str, *, threads: int) -> list[str]:
    who, _, how = side.partition("-")
    precision, _, lever = how.partition("+")
    if who == "torch":
        return [str(peer_python(TRM_FOLDER, TRM)), SIDE_PROGRAM, "peers.trm", precision, f"--threads={threads}"]
    ours = [sys.executable, SIDE_PROGRAM, "ours_trm", precision]
    accumulation = lever.partition("x")[2] or "1"
    return [*ours, "block" if lever == "remat" else "none", accumulation]


def drawn(variant: str) -> dict[str, np.ndarray]:
    """A file of the published size, as peers/trm_side.py reads it; weights as either side would begin with them."""
    import jax

    from plimsoll.recipes.puzzles.act import RecursiveSolver
    from plimsoll.types import Compute

    model = Trm(variant=variant)
    spec = PuzzleSpec(arrays={}, vocab=11, length=81, identifiers=1)
    params = jax.device_get(RecursiveSolver(model, spec, Compute()).init(jax.random.key(0)))
    random = np.random.default_rng(0)
    labels = random.integers(2, spec.vocab, (EXAMPLES, spec.length), np.int32)
    tensors = {
        "config": np.array(json.dumps(published(model, spec))),
        "step0/batch/inputs": np.where(random.random(labels.shape) < 0.7, np.int32(1), labels),
        "step0/batch/labels": labels,
        "step0/batch/puzzle_identifiers": np.zeros(EXAMPLES, np.int32),
    }
    for name, (place, turned) in names(model).items():
        leaf: Any = params
        for step in place:
            leaf = leaf[step]
        there = f"param/{name}" if place[0] == "trainable" else f"buffer/{BUFFERS.get(name, name)}"
        tensors[there.replace("buffer/inner.", "buffer/")] = leaf.T if turned else leaf
    return tensors


def published(model: Trm, spec: PuzzleSpec) -> dict[str, Any]:
    """Options and sizes in the published names."""
    return {
        "batch_size": EXAMPLES,
        "seq_len": spec.length,
        "vocab_size": spec.vocab,
        "num_puzzle_identifiers": spec.identifiers,
        "puzzle_emb_len": model.puzzle_positions,
        "puzzle_emb_ndim": model.width,
        "H_cycles": model.high_cycles,
        "L_cycles": model.low_cycles,
        "L_layers": model.layers,
        "hidden_size": model.width,
        "num_heads": model.heads,
        "expansion": 4,
        "pos_encodings": "rope" if model.variant == "attention" else "none",
        "mlp_t": model.variant == "mlp",
        "halt_max_steps": 16,
        "halt_exploration_prob": 0.0,
    }


def measured(sides: dict[str, Side], file: Path, *, rounds: int) -> dict[str, dict[str, Any]]:
    """Side to figures; all sides are started before the first round."""
    programs, rows = {}, {}
    for name, side in sides.items():
        if not name.startswith("torch"):  # a process that only compiles, as before a training process
            begun(name, side, file)[0].end()
        programs[name], told = begun(name, side, file)
        rows[name] = told | {"seconds": [], "cpu_seconds": [], "cores_taken_by_others": []}
    for _ in range(rounds):
        for name, program in programs.items():
            before, started = busy_seconds(), time.perf_counter()
            took = program.ask(do="step")
            others = max(0.0, busy_seconds() - before - took["cpu_seconds"]) / (time.perf_counter() - started)
            for figure, value in (took | {"cores_taken_by_others": others}).items():
                rows[name][figure].append(value)
    for name, program in programs.items():
        rows[name] |= program.ask(do="peak")
        program.end()
    return rows


def begun(name: str, side: Side, file: Path) -> tuple[Program, dict[str, Any]]:
    program = Program(name, *side)
    return program, program.ask(do="start", file=str(file))


def table(variant: str, rows: dict[str, dict[str, Any]]) -> str:
    head = ("s", "best", "CPU s", "x torch", "peak, MiB", "x torch", "loss", "others, cores")
    lines = [f"{variant:26}" + "".join(f"{name:>14}" for name in head)]
    for name, row in rows.items():
        ratios = over_torch(name, rows)
        median = statistics.median
        cells = (
            f"{median(row['seconds']):.3f}",
            f"{min(row['seconds']):.3f}",
            f"{median(row['cpu_seconds']):.2f}",
            f"{ratios['time']:.2f}" if ratios else "",
            f"{row['peak_bytes'] / 2**20:,.0f}",
            f"{ratios['memory']:.2f}" if ratios else "",
            f"{row['losses'][0]:.5f}",
            f"{median(row['cores_taken_by_others']):.2f}",
        )
        lines.append(f"  {name:24}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join([*lines, *goals(variant, rows)])


def over_torch(name: str, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Returns time (medians) and memory, ours over torch's in the same precision; empty where there is no such pair."""
    peer = f"torch-{name.partition('-')[2].partition('+')[0]}"
    if name == peer or peer not in rows:
        return {}
    time_of = {side: statistics.median(rows[side]["seconds"]) for side in (name, peer)}
    return {
        "time": time_of[name] / time_of[peer],
        "memory": rows[name]["peak_bytes"] / rows[peer]["peak_bytes"],
    }


def goals(variant: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    if {"torch-float32", "plimsoll-float32"} <= rows.keys():
        theirs, ours = (np.array(rows[side]["losses"]) for side in ("torch-float32", "plimsoll-float32"))
        apart = float(np.max(np.abs(ours / theirs - 1)))
        met = verdict(met=apart <= FARTHEST)
        lines.append(f"  goal: losses in float32 {apart:.1e} from torch's, at most {FARTHEST:g}: {met}")
    for (of, name), wanted in GOALS.items():
        ratios = over_torch(name, rows) if of == variant and name in rows else {}
        for what, most in wanted.items() if ratios else ():
            outcome = verdict(met=ratios[what] <= most)
            lines.append(f"  goal: {name}, {what} {ratios[what]:.2f} of torch's, at most {most:g}: {outcome}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
