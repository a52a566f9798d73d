"""A language model of linear recurrences beside a transformer: the same text, tokens, parameters and processor time.

    PYTHONPATH=src:benchmarks python benchmarks/longcontext_language.py [--minutes 6] [--text ...] [--seq-len 1024]

Both read the same documents with the same tokenizer and hold out the same ones. `longcontext` has the sizes given here,
`code` (the transformer) as many layers, and the width that comes nearest to its parameters. What a step of each costs
in processor time is taken from a run that is planned once and then continued twice, for fewer and for more steps; then
each trains for as many steps as fit into the minutes of the machine's cores, with its preset's optimizer and a schedule
of that length. Losses are those at the end, per token of the held-out documents; `by_position` is of the same windows
of held-out text for both, over stretches of positions. Writes bench-out/longcontext_language.json (--out).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from text_vs_trainer import conditions
from training_process import plimsoll

from plimsoll.data.packed.windows import packed_validation
from plimsoll.inference.trained import Trained
from plimsoll.levers.chunked_loss import chunked_nats
from plimsoll.recipes.longcontext.positions import stretches
from plimsoll.types import COUNTED

SHORT = 4, 10, 40
"""Steps after which the run stops that says what a step costs: after planning, and twice more."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=6.0, help="of all cores, for each side")
    options.add_argument("--text", default="python:standard-library")
    options.add_argument("--documents", default="600")
    options.add_argument("--vocab-size", default="4096")
    options.add_argument("--seq-len", default="1024")
    options.add_argument("--width", type=int, default=128)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--batch-size", default="8")
    options.add_argument("--learning-rate", default="2e-3")
    options.add_argument("--sides", nargs="+", default=["longcontext", "transformer"])
    options.add_argument("--out", type=Path, default=Path("bench-out/longcontext_language.json"))
    options.add_argument("--folder", type=Path, help="to keep; default one that is removed")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = compared(given, given.folder or Path(temporary))
    given.out.parent.mkdir(exist_ok=True)
    about = conditions(argparse.Namespace(**{name: str(value) for name, value in vars(given).items()}))
    given.out.write_text(json.dumps({"conditions": about, "rows": found}, indent=1))


def compared(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    packed = folder / "packed"
    text = ["--dataset-id", given.text, "--max-examples", given.documents]
    if not (packed / "meta.json").exists():
        plimsoll("prepare", "longcontext", *text, "--vocab-size", given.vocab_size, "--out", packed)
    common: list[Any] = [
        "--seq-len",
        given.seq_len,
        "--batch-size",
        given.batch_size,
        "--learning-rate",
        given.learning_rate,
    ]
    common += ["--gradient-accumulation-steps", 1, "--memory", "2GiB"]
    ours = ["longcontext", "--data", packed, "--width", given.width, "--layers", given.layers, *common]
    wanted = parameters(ours)
    theirs: list[Any] = ["code", *text, "--tokenizer", packed / "tokenizer.json", "--layers", given.layers, *common]
    widths = {width: parameters([*theirs, *sized(width)]) for width in range(64, 3 * given.width, 32)}
    nearest = min(widths, key=lambda width: abs(widths[width] - wanted))
    rows = []
    sides = {"longcontext": ours, "transformer": [*theirs, *sized(nearest)]}
    for name in given.sides:
        words = sides[name]
        per_step = cost_of_a_step(words, folder / f"{name}-short")
        steps = int(60 * given.minutes * len(os.sched_getaffinity(0)) / per_step)
        row = {"model": name, "parameters": parameters(words), "cpu_seconds_per_step": per_step, "steps": steps}
        whole = folder / f"{name}-whole"
        rows.append(
            row | trained(words, whole, steps) | {"by_position": by_position(whole, packed, int(given.seq_len))}
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def by_position(run: Path, packed: Path, length: int) -> dict[str, float]:
    """Returns the mean loss over stretches of positions of the held-out windows, by the run's own weights."""
    whole = Trained(str(run), step="best")
    task, weights = whole.recipe.task(whole.plan.compute("cpu")), whole.readable_params()

    @jax.jit
    def nats(weights: Any, ids: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = task.decoder.hidden(weights, ids)
        head = {"head": task.decoder.head, "chunk": 256}
        flat = chunked_nats(
            hidden.reshape(labels.size, -1), task.decoder.head_weights(weights), labels.reshape(-1), **head
        )
        return flat.reshape(labels.shape)

    parts, losses = stretches(length), []
    for batch in packed_validation(packed, seq_len=length, batch_size=4):
        tokens = np.asarray(batch["tokens"], np.int32)
        found = np.asarray(nats(weights, tokens[:, :-1], tokens[:, 1:]))
        losses.extend(found[np.asarray(batch[COUNTED])])
    mean = np.mean(losses, axis=0)
    return {f"{start} to {end - 1}": float(mean[start:end].mean()) for start, end in parts.values()}


def sized(width: int) -> list[Any]:
    return ["--width", width, "--heads", width // 32]


def parameters(words: list[Any]) -> int:
    planned = plimsoll("plan", *words, "--micro-batch", 1, "--remat", "block", "--precision", "float32", "--json")
    return json.loads(planned)["parameters"]


def cost_of_a_step(words: list[Any], run: Path) -> float:
    """Processor seconds."""
    took = [trained(words, run, 1000, "--max-steps", steps)["cpu_seconds"] for steps in SHORT]
    _, few, more = SHORT
    return (took[2] - took[1]) / (more - few - (few - SHORT[0]))


def trained(words: list[Any], run: Path, steps: int, *options: Any) -> dict[str, Any]:
    before = cpu_seconds()
    plimsoll("train", *words, "--steps", steps, "--eval-every", 0, "--quiet", "--run", run, *options)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    judged = [row["validation_loss"] for row in rows if "validation_loss" in row]
    return {"cpu_seconds": cpu_seconds() - before, "validation_loss": judged[-1] if judged else None}


def cpu_seconds() -> float:
    """Returns the CPU seconds of every process that was waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
