"""A network of two layers, written down in plain JAX, learns which arm of a spiral a point lies on.

plimsoll train docs/examples/plain_jax.py --memory 600MiB
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

WIDTH = 64


def spirals(count, seed):
    """Points (count, 2) and the arm (0 or 1) that each lies on."""
    random = np.random.default_rng(seed)
    arm = random.integers(0, 2, count)
    turn = 3 * np.pi * np.sqrt(random.uniform(size=count))
    angle = turn + np.pi * arm
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / 10
    return {"point": points + random.normal(scale=0.02, size=points.shape), "arm": arm}


def init(key):
    first, second = jax.random.split(key)
    return {
        "hidden": {"weights": jax.random.normal(first, (2, WIDTH)) * 3, "bias": jnp.zeros(WIDTH)},
        "out": {"weights": jax.random.normal(second, (WIDTH, 2)) * WIDTH**-0.5, "bias": jnp.zeros(2)},
    }


def loss(params, batch):
    hidden = jnp.sin(batch["point"] @ params["hidden"]["weights"] + params["hidden"]["bias"])
    logits = hidden @ params["out"]["weights"] + params["out"]["bias"]
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["arm"])
    right = jnp.sum(jnp.argmax(logits, axis=-1) == batch["arm"])
    return jnp.sum(nats), nats.size, {"accuracy": (right, nats.size)}  # sums, and what to divide them by


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: spirals(4096, seed=0),
    validation_data=lambda: spirals(500, seed=1),
    optimizer=lambda steps: optax.adam(optax.cosine_decay_schedule(1e-2, steps)),
    batch_size=64,
    steps=300,
)
