"""Our optimizers and decays at equal steps on real text: the validation loss after a short run of `code`.

A part of benchmarks/optimizers.py. Every run has the same model, batches and steps. The learning rate of each optimizer
and decay is found for one seed: from that of FIRST_RATES it is doubled or halved while the loss falls. Then every seed
is trained with it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measuring import conditions, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import plimsoll  # noqa: E402
from plimsoll.optimizers.settings import Rates  # noqa: E402
from plimsoll.planned import plain_compute  # noqa: E402
from plimsoll.training.step import StepSpec, make_init, make_step  # noqa: E402

SMALL = {"width": 64, "layers": 2, "heads": 2, "vocab_size": 1024}
BATCH = 16
"""Examples of 128 tokens in a step."""
HELD_OUT = 40
"""Batches that no run trains on."""
FIRST_RATES: dict[type[Rates], float] = {plimsoll.AdamW: 8e-3, plimsoll.Muon: 8e-3, plimsoll.Lion: 1e-3}
DECAYS: dict[type[Rates], Sequence[str]] = {
    plimsoll.AdamW: ("cosine", "linear", "wsd", "constant"),
    plimsoll.Muon: ("cosine", "linear", "wsd", "constant"),
    plimsoll.Lion: ("cosine",),
}
RULES: dict[type[Rates], dict[str, float]] = {
    plimsoll.AdamW: {"weight_decay": 0.1, "beta2": 0.99},
    plimsoll.Muon: {"weight_decay": 0.1, "beta2": 0.99},
    plimsoll.Lion: {"weight_decay": 0.3},
}
"""Settings besides the rate; AdamW's are those of `code`."""


@dataclass(frozen=True)
class Text:
    """Batches of one seed, and what trains on them."""

    task: Any
    training: Sequence[Any]
    validation: Sequence[Any]


@cache
def text_of(seed: int, steps: int) -> Text:
    """Returns the batches of one seed; those that are held out come first."""
    recipe = plimsoll.preset("code", **SMALL, batch_size=BATCH, gradient_accumulation_steps=1, steps=steps, seed=seed)
    source = plimsoll.loader(recipe)
    batches = list(islice(source, HELD_OUT + steps))
    return Text(recipe.task(plain_compute()), batches[HELD_OUT:], batches[:HELD_OUT])


@cache
def compiled(kind: type[Rates], steps: int, first_seed: int) -> tuple[Any, Any, Any]:
    """Returns the compiled first state, step and validation of an optimizer; the rates of a run are an argument."""
    text = text_of(first_seed, steps)

    def rule_of(rates: Any) -> Any:
        class Tabled(kind):
            def schedule(self, steps: int) -> Any:
                return lambda count: rates[count]

        return Tabled(**RULES[kind]).rule(steps)

    def init(seed: Any) -> Any:
        return make_init(text.task, rule_of(jnp.zeros(steps)))(seed)

    def step(state: Any, batch: Any, rates: Any) -> Any:
        return make_step(text.task, rule_of(rates), StepSpec(accumulation=1))(state, batch)

    def sums(params: Any, batch: Any) -> Any:
        loss, _, _ = text.task.loss(params, None, batch, None, train=False)
        return loss.total, loss.weight

    return jax.jit(init), jax.jit(step, donate_argnums=0), jax.jit(sums)


@cache
def trained(optimizer: Rates, seed: int, steps: int, first_seed: int) -> dict[str, Any]:
    """Trains, and returns losses, the bytes of the state and the CPU seconds of a step."""
    text = text_of(seed, steps)
    init, step, sums = compiled(type(optimizer), steps, first_seed)
    rates = jnp.stack([jnp.float32(optimizer.schedule(steps)(count)) for count in range(steps)])
    state = init(np.uint32(seed))

    # CPU seconds of the median step, because other programs may take cores, and the first one compiles.
    losses = []
    seconds = []
    for batch in text.training:
        before = time.process_time()
        state, metrics = step(state, batch, rates)
        losses.append(float(metrics["loss"]))
        seconds.append(time.process_time() - before)

    # The mean loss of a token that no run trains on, in nats.
    pairs = [jax.device_get(sums(state["params"], batch)) for batch in text.validation]
    total = sum(total for total, _ in pairs)
    tokens = sum(weight for _, weight in pairs)
    return {
        "validation_loss": float(total / tokens),
        "losses": [statistics.mean(losses[at : at + 20]) for at in range(0, steps, 20)],
        "state_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(state["optimizer"])),
        "cpu_seconds": statistics.median(seconds),
    }


def best_rate(kind: type[Rates], decay: str, options: argparse.Namespace) -> dict[float, float]:
    """Returns learning rate to validation loss of the first seed; the best rate has a worse one on either side."""

    def loss_of(rate: float) -> float:
        optimizer = kind(learning_rate=rate, decay=decay, **RULES[kind])
        loss = trained(optimizer, options.seeds[0], options.steps, options.seeds[0])["validation_loss"]
        print(f"{kind.__name__:6} {decay:8} {rate:<8g} {loss:.3f}", flush=True)
        return loss

    losses = {FIRST_RATES[kind]: loss_of(FIRST_RATES[kind])}
    while True:
        best = min(losses, key=lambda rate: losses[rate])
        missing = [rate for rate in (2 * best, best / 2) if rate not in losses]
        if not missing:
            return losses
        losses[missing[0]] = loss_of(missing[0])


def measure(options: argparse.Namespace) -> int:
    """Trains all of them, prints a table, and writes the result file."""
    curves: dict[str, dict[str, Any]] = {}
    for kind, decays in DECAYS.items():
        for decay in decays:
            losses = best_rate(kind, decay, options)
            rate = min(losses, key=lambda rate: losses[rate])

            # Its validation loss for every seed, and the mean of what else was measured.
            optimizer = kind(learning_rate=rate, decay=decay, **RULES[kind])
            runs = [trained(optimizer, seed, options.steps, options.seeds[0]) for seed in options.seeds]
            row = {name: statistics.mean(run[name] for run in runs) for name in runs[0] if name != "losses"}
            row |= {"learning_rate": rate, "by_seed": [run["validation_loss"] for run in runs]}
            row |= {"spread": max(row["by_seed"]) - min(row["by_seed"]), "losses": [run["losses"] for run in runs]}
            row |= {"sweep": {f"{rate:g}": loss for rate, loss in losses.items()}}
            curves[f"{kind.__name__}, {decay}"] = row
            print(f"{kind.__name__:6} {decay:8} {row['validation_loss']:.3f} {row['by_seed']}", flush=True)
            write(ROOT / "bench-out/optimizer_curves.json", {"conditions": conditions(options), "curves": curves})
    return 0
