"""A small recipe of one's own on arrays: examples/s that its plan promises, that it trains, and of a bare loop.

    python benchmarks/own_recipe_speed.py [--rounds 3] [--steps 6000] [--width 256]

The bare loop is what one writes without a library: a jitted step with its state donated, batches that are rows of NumPy
arrays in a permuted order, the loss read every ten steps. The two take turns, each in a process of its own, the same
model, data, optimizer and batch. Of each the median over windows of ten steps, the first steps left out, and then of
the rounds; `cores taken by others` says whether the figures mean anything.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from measuring import ROOT, verdict, write
from training_process import ENVIRONMENT, plimsoll, trained

RECIPE = Path(__file__).parent / "ours/arrays.py"
BATCH, LOGGED, WARM = 64, 10, 500
"""Examples of a batch; steps between looks at the loss; steps that are not timed."""
OF_BARE, PROMISE = 0.8, 1.3
"""Goals: trained over bare, at least; promised over trained, at most."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=6_000)
    options.add_argument("--width", type=int, default=256, help="of the two hidden layers")
    options.add_argument("--memory", default="600MiB")
    options.add_argument("--out", type=Path, default=ROOT / "bench-out/own_recipe_speed.json")
    options.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.bare:
        print(bare(given))
        return 0
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            others, started = others_seconds(), time.monotonic()
            figures = ours(given, Path(folder) / str(number)) | {"bare": asked_bare(given)}
            taken = (others_seconds() - others) / (time.monotonic() - started)
            rounds.append(figures | {"cores taken by others": taken})
            print("  ".join(f"{name} {value:,.4g}" for name, value in rounds[-1].items()), flush=True)
    middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    of_bare, promise = middle["trained"] / middle["bare"], middle["promised"] / middle["trained"]
    fast, kept = of_bare >= OF_BARE, 1 / PROMISE <= promise <= PROMISE
    print(
        f"promised {middle['promised']:,.0f} examples/s, trained {middle['trained']:,.0f}, bare loop"
        f" {middle['bare']:,.0f}: {of_bare:.2f} of the bare loop (goal: at least {OF_BARE}: {verdict(met=fast)}),"
        f" the promise {promise:.2f} times what was trained (goal: at most {PROMISE}, at least {1 / PROMISE:.2f}:"
        f" {verdict(met=kept)})"
    )
    about = {"steps": given.steps, "width": given.width, "batch": BATCH}
    write(given.out, {**about, "medians": middle, "rounds": rounds})
    return 0 if fast and kept else 1


def ours(given: argparse.Namespace, run: Path) -> dict[str, float]:
    """Returns the examples/s that the plan of a run promises, and those that were trained, by its log."""
    command = ["train", RECIPE, "--width", given.width, "--steps", given.steps, "--batch-size", BATCH]
    plimsoll(*command, "--memory", given.memory, "--run", run, "--quiet", "--save-every", given.steps)
    done = trained(run)
    promised = BATCH / done.planned["step_seconds"]
    seconds = [row["step_seconds"] for row in done.rows if "step_seconds" in row and row["step"] > WARM]
    waited = [row["data_seconds"] for row in done.rows if "data_seconds" in row and row["step"] > WARM]
    return {
        "promised": promised,
        "trained": BATCH / statistics.median(seconds),
        "waited": sum(waited) / sum(seconds),
        "predicted MiB": done.predicted / 2**20,
        "peak MiB": done.peak / 2**20,
    }


def asked_bare(given: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "--bare", "--steps", str(given.steps), "--width", str(given.width)]
    environment = ENVIRONMENT | {"JAX_PLATFORMS": "cpu"}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def bare(given: argparse.Namespace) -> float:
    """Returns the examples/s of the bare loop."""
    import jax
    import numpy as np
    import optax

    recipe = _recipe(given.width)
    rule = recipe.composed().update_rule(given.steps)

    def step(state: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        params, moments = state

        def mean(params: Any) -> Any:
            total, weight, _ = recipe.loss(params, batch)
            return total / weight

        loss, gradient = jax.value_and_grad(mean)(params)
        updates, moments = rule.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    jitted = jax.jit(step, donate_argnums=0)
    params = recipe.init(jax.random.key(0))
    state = params, rule.init(params)
    data, random = recipe.data(), np.random.default_rng(0)
    count, order, ends = len(next(iter(data.values()))), np.zeros(0, int), []
    for number in range(given.steps):
        if len(order) < BATCH:
            order = np.concatenate([order, random.permutation(count)])
        rows, order = order[:BATCH], order[BATCH:]
        state, loss = jitted(state, {name: values[rows] for name, values in data.items()})
        if number % LOGGED == 0:
            float(loss)
            if number >= WARM:
                ends.append(time.perf_counter())
    return BATCH * LOGGED / statistics.median(end - start for start, end in itertools.pairwise(ends))


def _recipe(width: int) -> Any:
    spec = importlib.util.spec_from_file_location("arrays_recipe", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return dataclasses.replace(module.recipe, width=width)


def others_seconds() -> float:
    """CPU seconds of the machine so far that are not this program's nor its children's."""
    machine, own = psutil.cpu_times(), os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    return machine.user + machine.system + machine.nice - mine


if __name__ == "__main__":
    sys.exit(main())
