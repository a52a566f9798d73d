"""Loss after 1,000 steps of real text in three precisions: float32, bfloat16 products, bfloat16 activations besides.

    python benchmarks/precision_loss.py [--steps 1000] [--seeds 0 1 2] [--text FILE]

A decoder of `stories`, small enough for one core, learns from a text (default TinyStories in `$PLIMSOLL_SHARED` or
../shared, else Python's own source). All precisions see the same batches from the same weights; the held-out loss at
the end is compared with that of float32, seed by seed. Prints a table, writes one JSON to bench-out/; the exit code is
1 where a mean is more than 0.5 % off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

ROOT = Path(__file__).resolve().parents[1]
TEXT = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared")) / "data/text/tinystories_train.txt"
PRECISIONS: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16 products": {"precision": "bfloat16"},
    "bfloat16 activations": {"precision": "bfloat16", "activations": "bfloat16"},
}
MOST = 0.005
"""Of the mean difference from float32, relative."""
SIZE: dict[str, Any] = {
    "width": 96, "layers": 3, "heads": 3, "vocab_size": 2_048, "seq_len": 128, "batch_size": 8,
    "gradient_accumulation_steps": 1, "learning_rate": 3e-3, "validation_tokens": 50_000, "shuffle_buffer_size": 10_000,
}  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=1_000)
    options.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    options.add_argument("--text", help="a text, as `plimsoll train stories --dataset-id` takes it")
    given = options.parse_args()
    text = given.text or (str(TEXT) if TEXT.exists() else "python:standard-library")
    rows = []
    prepared = tempfile.TemporaryDirectory()
    recipe_of(text, given.steps, 0).prepare(Path(prepared.name), lambda message: None)
    for seed in given.seeds:
        losses = {}
        for name, levers in PRECISIONS.items():
            started = time.perf_counter()
            losses[name] = held_out_loss(recipe_of(text, given.steps, seed), levers, Path(prepared.name))
            off = losses[name] / losses["float32"] - 1
            rows.append({"seed": seed, "precision": name, "loss": losses[name], "off": off})
            print(
                f"seed {seed}  {name:22} {losses[name]:.4f}  {off:+.2%}  {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    Path("bench-out").mkdir(exist_ok=True)
    Path("bench-out/precision_loss.json").write_text(json.dumps({"text": text, "steps": given.steps, "rows": rows}))
    means = {
        name: statistics.mean(row["off"] for row in rows if row["precision"] == name) for name in list(PRECISIONS)[1:]
    }
    print("; ".join(f"{name}: {off:+.2%} of float32" for name, off in means.items()))
    return int(any(abs(off) > MOST for off in means.values()))


def recipe_of(text: str, steps: int, seed: int) -> Any:
    from plimsoll.recipes.registry import preset

    return replace(preset("stories"), dataset_id=text, seed=seed, steps=steps, **SIZE)


def held_out_loss(recipe: Any, levers: dict[str, str], prepared: Path) -> float:
    """Trains from the seed's weights, and returns nats per held-out token."""
    import jax
    import numpy as np

    from plimsoll.planned import Plan
    from plimsoll.training.program import compile_all, lower

    plan = Plan(
        chip="cpu", micro_batch=recipe.batch_size, accumulation=1, remat="none", loss_chunk=256, precision="float32",
        prefetch=1, async_save=False,
    ).with_levers(**levers)  # fmt: skip
    spec = recipe.batch_spec(recipe.effective_batch)
    program = lower(
        recipe.task(plan.compute(jax.default_backend())),
        recipe.update_rule(recipe.steps, plan.storage),
        plan,
        batch=spec,
        evaluation_batch=spec,
    )
    functions = compile_all(program)
    state, source = functions.init(np.uint32(recipe.seed)), recipe.source(prepared, prefetch=1)
    for _ in range(recipe.steps):
        state, _ = functions.step(state, next(source))
    source.close()
    total = weight = 0.0
    for batch in recipe.validation(prepared, examples=recipe.effective_batch):
        if len(batch["input_ids"]) == recipe.effective_batch:
            loss = functions.evaluate(state["params"], batch)["loss"]
            total, weight = total + float(loss.total), weight + float(loss.weight)
    return total / weight


if __name__ == "__main__":
    sys.exit(main())
