"""A Flax Linen module says what lies between the points of a wave, in bfloat16 and recomputed where the plan says so.

plimsoll train docs/examples/flax_linen.py --memory 600MiB
plimsoll plan docs/examples/flax_linen.py:large --memory 1GiB
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

POINTS = 32


class Wave(nn.Module):
    """Residual blocks over a whole wave."""

    layers: int
    dtype: jnp.dtype
    remat: bool

    @nn.compact
    def __call__(self, x):
        block = nn.remat(Block) if self.remat else Block
        x = nn.Dense(128, dtype=self.dtype)(x)
        for number in range(self.layers):
            x = block(dtype=self.dtype, name=f"block_{number}")(x)  # nn.remat would name its parameters otherwise
        return nn.Dense(POINTS, dtype=jnp.float32)(x)


class Block(nn.Module):
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(nn.Dense(512, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)))
        return x + nn.Dense(128, dtype=self.dtype)(hidden)


def waves(count, seed):
    """Sums of three sines at even places, and at the places between them."""
    random = np.random.default_rng(seed)
    pitch, phase = random.uniform(1, 8, (count, 3, 1)), random.uniform(0, 2 * np.pi, (count, 3, 1))
    place = np.linspace(0, np.pi, 2 * POINTS, endpoint=False)
    wave = np.sum(np.sin(pitch * place + phase), axis=1)
    return {"heard": wave[:, ::2], "between": wave[:, 1::2]}


def make(layers):
    """The loss takes `compute`, so the planner may choose precision and rematerialisation: `supported` says so."""

    def model(compute=None):
        low = compute is not None and compute.precision == "bfloat16"
        remat = compute is not None and compute.remat == "block"
        return Wave(layers, jnp.bfloat16 if low else jnp.float32, remat)

    def init(key):
        return model().init(key, jnp.zeros((1, POINTS)))["params"]

    def loss(params, batch, *, compute):
        error = model(compute).apply({"params": params}, batch["heard"]) - batch["between"]
        return jnp.sum(error**2), error.size

    return plimsoll.recipe(
        init=init,
        loss=loss,
        data=lambda: waves(4096, seed=0),
        validation_data=lambda: waves(500, seed=1),
        optimizer=lambda steps: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, steps // 10, steps)),
        supported=("precision", "remat"),
        batch_size=128,
        steps=300,
    )


recipe = make(layers=2)
large = make(layers=12).replace(batch_size=512)
