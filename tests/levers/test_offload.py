"""A state on the host is updated to the same numbers, and the device never holds all of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plimsoll.errors import RecipeError
from plimsoll.levers.offload import DEVICE, HOST, SMALLEST_MOVED, host_bytes, memory_kinds, on_host, over_host_pieces
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.in_place import in_place
from plimsoll.recipes.registry import preset
from plimsoll.training.checkpoint import Checkpoints, load_state
from plimsoll.training.fingerprint import fingerprint
from plimsoll.training.program import compiled, lower, tree_bytes
from plimsoll.types import Plan

RECIPE = replace(
    preset("stories"), width=128, layers=3, heads=4, vocab_size=300, seq_len=32, batch_size=4, warmup_steps=2
)
PLAN = Plan(
    chip="cpu", micro_batch=2, accumulation=2, remat="block", loss_chunk=0, precision="float32", prefetch=0,
    async_save=False,
)  # fmt: skip
"""On a CPU the search refuses the lever; JAX has the memory kinds there, so that what it does can be seen."""
HOSTED = replace(PLAN, offload="optimizer")


def lowered(plan, recipe=RECIPE):
    return lower(
        recipe.task(plan.compute("cpu")),
        recipe.update_rule(20),
        plan,
        batch=recipe.batch_spec(recipe.effective_batch),
        evaluation_batch=recipe.batch_spec(plan.micro_batch),
    )


def kinds(state):
    return [leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)]


def leaves(state):
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in flat]


def batches(steps):
    random = np.random.default_rng(0)
    for _ in range(steps):
        yield {
            name: random.integers(0, 300, shape).astype(dtype) for name, (shape, dtype) in RECIPE.batch_spec(4).items()
        }


def trained(plan, steps):
    program = lowered(plan)
    step, state, losses = compiled(program.step), compiled(program.init)(np.uint32(0)), []
    for batch in batches(steps):
        state, metrics = step(state, batch)
        losses.append(np.asarray(metrics["loss"]))
    return program, step, state, losses


@pytest.fixture(scope="module")
def both():
    return trained(PLAN, 20), trained(HOSTED, 20)


def test_twenty_steps_with_the_state_on_the_host_are_those_on_the_device(both):
    (_, _, device, device_losses), (_, _, host, host_losses) = both
    print(max(float(np.max(np.abs(a[1] - b[1]))) for a, b in zip(leaves(device), leaves(host))))
    assert np.array_equal(device_losses, host_losses)
    assert fingerprint(leaves(host), {}) == fingerprint(leaves(device), {})
