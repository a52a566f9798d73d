"""One update of narrow state, whole and split over four devices; a program, since these are set before JAX starts."""

import json
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.levers import sharding
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.adamw8 import adamw8
from plimsoll.types import Storage

FSDP, PIECE = 4, 2**13
SHAPES = {"last": (4, 128, 512), "first": (512, 2, 128), "crossing": (512, 96, 6), "small": (8,)}
"""Split along the last axis; along the first; with blocks across the last; not at all."""
GATHERED = {"not_blocks": (64, 1056)}
"""Shards of 264 columns are no whole blocks."""


def main() -> None:
    jax.config.update("jax_disable_most_optimizations", True)
    for shapes in (SHAPES, GATHERED):
        for weight_bits in (16, 24):
            optimizer = adamw8(
                AdamW(warmup_steps=0).adam(100), Storage(optimizer_bits=8, weight_bits=weight_bits), piece=PIECE
            )
            print(json.dumps(compared(optimizer, shapes)))


def compared(optimizer, shapes):
    """The share of elements that differ, and the temporaries of a device."""

    def step(gradient, stored, state):
        return optimizer.apply(gradient, state, stored)

    random = np.random.default_rng(0)
    params = {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    given = jax.device_get((params, optimizer.store(params), optimizer.init(params)))
    whole = jax.jit(step)(*given)
    mesh = sharding.mesh_of(jax.devices(), fsdp=FSDP)
    lies = sharding.shardings(mesh, sharding.state_specs(given, fsdp=FSDP))
    with jax.set_mesh(mesh):
        placed = jax.device_put(given, lies)
        compiled = jax.jit(step, donate_argnums=(1, 2), out_shardings=lies[1:]).lower(*placed).compile()
        split = compiled(*placed)
    pairs = zip(jax.tree.leaves(split), jax.tree.leaves(whole), strict=True)
    return {
        "differ": max(float(np.mean(np.asarray(one) != np.asarray(other))) for one, other in pairs),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "charged_bytes": 12 * PIECE,
    }


if __name__ == "__main__":
    main()
