"""What lies in the host's memory changes no number: the same steps with and without it, on the device that JAX finds.

A part of device.py, in a process of its own: `python benchmarks/sides.py offload_parity [--toy]`.

A decoder, and a user's recipe of frozen layers beside learned ones, take three steps from one state on one batch:
plain, and with each value of `--remat` and `--offload` that puts something on the host. Printed is JSON: for each of
them how far losses, gradient norms, weights and moments are from the plain ones, as the norm of the difference over
the norm of the plain leaf, of the leaf where that is largest. After one step the first moments are the gradient, by a
factor.

A compiler that reads other rows than a loop asks for is seen here and nowhere on a CPU (openxla/xla#46231): distances
are then near 1, and otherwise rounding.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plimsoll
from plimsoll.levers.frozen import frozen_dot
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.recipes.registry import preset
from plimsoll.training import program
from plimsoll.types import Levers, StepOptions

STEPS = 3
"""The second one reads moments that the first has written to the host."""
LIMIT = 1e-3
"""Distance that rounding stays below: a loop over pieces is fused otherwise than the whole update."""
ON_HOST = {"remat": ("offload",), "offload": ("optimizer", "frozen", "all")}


def decoder() -> Any:
    size = {"width": 512, "layers": 8, "heads": 4, "vocab_size": 2_048, "seq_len": 512, "batch_size": 8}
    return preset("stories").replace(**size, ema_decay=0.9, warmup_steps=1)


def frozen_layers(*, width: int, layers: int) -> Any:
    def init(key: jax.Array) -> dict[str, Any]:
        kernels = jax.random.normal(key, (layers, width, width)) / width**0.5
        return {"trainable": {"kernels": 0.5 * kernels}, "frozen": {"kernels": kernels}}

    def loss(params: Any, batch: Any, *, compute: Any) -> tuple[jax.Array, int]:
        def block(x: jax.Array, layer: Any) -> jax.Array:
            return x + jnp.tanh(x @ layer["learned"] + frozen_dot(x, layer["frozen"], compute))

        step = plimsoll.rematerialised(block, compute.remat, platform=compute.platform)
        layered = {"learned": params["trainable"]["kernels"], "frozen": params["frozen"]["kernels"]}
        x, _ = jax.lax.scan(lambda x, layer: (step(x, layer), None), batch["x"], layered)
        return jnp.sum(jnp.square(x - batch["x"])), x.size

    draw = np.random.default_rng(0)
    return plimsoll.recipe(
        init=init,
        loss=loss,
        data=lambda: {"x": draw.normal(size=(64, width)).astype(np.float32)},
        optimizer=plimsoll.AdamW(warmup_steps=1),
        batch_size=8,
        steps=STEPS,
        supported=("remat", "remat_offload", "frozen_offload"),
    )


def plain_plan(recipe: Any) -> Plan:
    """Returns a plan in two micro-batches, its layers in a loop, of which nothing is on the host."""
    plan = Plan(
        chip="cpu" if jax.default_backend() == "cpu" else "card",
        accumulation=2,
        levers=Levers(
            micro_batch=recipe.effective_batch // 2,
            remat="block",
            loss_chunk=0,
            precision="float32",
            prefetch=0,
            async_save=False,
        ),
    )
    return plan.with_levers(unroll=0)


def batch_of(recipe: Any) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    batch = {}
    for name, (shape, dtype) in recipe.spec.batch(recipe.effective_batch).items():
        whole = np.issubdtype(np.dtype(dtype), np.integer)
        batch[name] = draw.integers(0, 512, shape).astype(dtype) if whole else draw.normal(size=shape).astype(dtype)
    return batch


def trained(recipe: Any, plan: Plan) -> dict[str, np.ndarray]:
    """Returns the leaves of the state after the steps, and each step's loss and gradient norm, by name."""
    lowered = program.Functions(
        recipe.task(plan.compute(jax.default_backend())),
        recipe.update_rule(STEPS + 1),
        plan,
        StepOptions(),
    ).program(
        batch=recipe.spec.batch(recipe.effective_batch),
        evaluation_batch=recipe.spec.batch(plan.micro_batch),
    )
    step, state = program.compiled(lowered.step), program.compiled(lowered.init)(np.uint32(0))
    named: dict[str, np.ndarray] = {}
    for number in range(STEPS):
        state, report = step(state, batch_of(recipe))
        named |= {f"step {number}: {name}": np.asarray(report[name]) for name in ("loss", "gradient_norm")}
        if number == 0:  # the gradient, before anything that was moved is read again
            named |= leaves(state["optimizer"], "step 0: optimizer")
    return named | leaves(state, "state")


def leaves(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """Returns the norm of the difference over that of what is expected; infinity where it is no number."""
    wide, plain = actual.astype(np.float64), expected.astype(np.float64)
    apart = float(np.linalg.norm(wide - plain) / max(float(np.linalg.norm(plain)), 1e-30))
    return apart if np.isfinite(apart) else float("inf")


def compared(recipe: Any) -> dict[str, dict[str, Any]]:
    """Returns the largest distance, and whose it is, for each value that the recipe supports."""
    plain = plain_plan(recipe)
    expected = trained(recipe, plain)
    found = {}
    for lever, values in ON_HOST.items():
        for value in values:
            if LEVERS[lever].missing(value, recipe.hints.levers) is not None:
                continue
            actual = trained(recipe, plain.with_levers(**{lever: value}))
            apart = {name: distance(actual[name], expected[name]) for name in expected}
            worst = max(apart, key=lambda name: apart[name])
            found[f"{lever} {value}"] = {"distance": apart[worst], "leaf": worst}
    return found


def side() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--toy", action="store_true", help="the frozen layers alone, and small")
    if options.parse_args().toy:
        recipes = {"frozen layers": frozen_layers(width=128, layers=4)}
    else:
        recipes = {"frozen layers": frozen_layers(width=512, layers=16), "decoder": decoder()}
    distances = {
        f"{name}, {words}": found for name, recipe in recipes.items() for words, found in compared(recipe).items()
    }
    print(json.dumps({"limit": LIMIT, "distances": distances}))
