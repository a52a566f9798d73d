"""What narrow state costs in learning: the same small language model, seeds and batches, under each form of AdamW.

    python benchmarks/eight_bit_parity.py                         1,000 steps, three seeds: half an hour on two cores
    python benchmarks/eight_bit_parity.py --steps 20 --seeds 0    to see that it works

A decoder of 1.1M parameters (128 wide, 4 layers, vocabulary 2,048, bfloat16 dots), 16 windows of 128 tokens a step. All
forms take each step on the same batch. Prints the held-out loss of each over that of float32 state and weights,
by seed, and writes bench-out/eight_bit_parity.json. Goal: each within 0.5 % in the mean over the seeds.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers.environment import ROOT
from peers.text import encode
from text_vs_trainer import conditions

sys.path.insert(0, str(ROOT / "src"))

from plimsoll.levers.weight_bits import readable
from plimsoll.models.language import NextToken
from plimsoll.models.sizing import DecoderShape
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.adamw8 import build
from plimsoll.optimizers.in_place import InPlace
from plimsoll.types import Compute, Storage

FORMS = {
    "float32": Storage(),
    "8": Storage(optimizer_bits=8),
    "8-w24": Storage(optimizer_bits=8, weight_bits=24),
    "8-w16": Storage(optimizer_bits=8, weight_bits=16),
    "w24": Storage(weight_bits=24),
    "w16": Storage(weight_bits=16),
}
SHAPE = DecoderShape(vocab=2048, width=128, layers=4, heads=4, inner=384)
LENGTH, BATCH, HELD_OUT = 128, 16, 512
"""Tokens of a window, windows of a step, windows of the held-out loss."""
GOAL = 0.005


def main() -> int:
    shared = Path(os.environ.get("PLIMSOLL_SHARED", ROOT.parent / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), metavar="FORM")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--text", type=Path, default=shared / "data/text/tinystories_train.txt")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/eight_bit_parity.json")
    options = parser.parse_args()
    forms = list(dict.fromkeys(["float32", *options.forms]))
    tokens = encode(options.text.read_text(encoding="utf-8"), vocab_size=SHAPE.vocab)
    runs = {}
    for seed in options.seeds:
        runs[seed] = trained(tokens, forms, seed=seed, steps=options.steps, learning_rate=options.learning_rate)
        print(line(f"seed {seed}", runs[seed]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"conditions": conditions(options), "seeds": runs}, indent=1))
    off = {form: statistics.fmean(run[form]["held_out"] / run["float32"]["held_out"] for run in runs.values()) - 1
           for form in forms}  # fmt: skip
    print("mean         " + "".join(f"{form:>9} {share:+7.3%}" for form, share in off.items()))
    return 0 if all(abs(share) <= GOAL for share in off.values()) else 1


def line(name: str, run: dict[str, dict]) -> str:
    base = run["float32"]["held_out"]
    return f"{name:12} " + "".join(f"{form:>9} {one['held_out'] / base - 1:+7.3%}" for form, one in run.items())


def trained(tokens: np.ndarray, forms: list[str], *, seed: int, steps: int, learning_rate: float) -> dict[str, dict]:
    """Form to its losses: of every step, and at the end of windows that no step saw."""
    task = NextToken(SHAPE, Compute(precision="bfloat16", platform="cpu"))
    settings = AdamW(learning_rate=learning_rate, warmup_steps=min(100, steps // 10), weight_decay=0.1, beta2=0.95)
    optimizers = {form: build(settings, steps, FORMS[form]) for form in forms}
    step_of = {form: step_function(task, optimizer) for form, optimizer in optimizers.items()}
    kept = {form: start(task, optimizer, seed) for form, optimizer in optimizers.items()}
    losses: dict[str, list[float]] = {form: [] for form in forms}

    border = len(tokens) - HELD_OUT * (LENGTH + 1)
    random = np.random.default_rng(seed)
    for _ in range(steps):
        ids = windows(tokens, random.integers(0, border - LENGTH - 1, BATCH))
        for form in forms:
            *kept[form], loss = step_of[form](*kept[form], ids)
            losses[form].append(float(loss))
    held_out = windows(tokens, border + np.arange(HELD_OUT) * (LENGTH + 1)).reshape(-1, BATCH, LENGTH + 1)
    loss_of = jax.jit(lambda weights, ids: mean_loss(task, weights, ids))

    def at_end(form: str) -> float:
        seen = widened(readable(kept[form][0]))
        return statistics.fmean(float(loss_of(seen, ids)) for ids in held_out)

    return {form: {"held_out": at_end(form), "losses": losses[form]} for form in forms}


def start(task: NextToken, optimizer: InPlace, seed: int) -> list[Any]:
    params = task.init(jax.random.key(seed))["trainable"]
    return list(jax.jit(lambda params: (optimizer.store(params), optimizer.init(params)))(params))


def step_function(task: NextToken, optimizer: InPlace) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """Weights, state and windows to the next weights and state, and the loss."""

    def step(stored: Any, state: Any, ids: jax.Array) -> tuple[Any, Any, jax.Array]:
        # Of the float32 that bfloat16 weights stand for, so that their gradient is float32, too.
        seen = widened(readable(stored))
        loss, gradient = jax.value_and_grad(lambda weights: mean_loss(task, weights, ids))(seen)
        return *optimizer.apply(gradient, state, stored), loss

    return jax.jit(step, donate_argnums=(0, 1))


def mean_loss(task: NextToken, weights: Any, ids: jax.Array) -> jax.Array:
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    loss, _, _ = task.loss({"trainable": weights}, None, batch, jax.random.split(jax.random.key(0), BATCH), train=True)
    return loss.total / loss.weight


def widened(weights: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights)


def windows(tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return tokens[starts[:, None] + np.arange(LENGTH + 1)]


if __name__ == "__main__":
    sys.exit(main())
