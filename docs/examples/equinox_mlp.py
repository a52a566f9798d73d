"""An Equinox module, with dropout and a width that can be given: which of two moons does a point belong to?

plimsoll train docs/examples/equinox_mlp.py --width 96 --memory 600MiB
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import plimsoll


class Classifier(eqx.Module):
    """Two layers, with dropout between them."""

    hidden: eqx.nn.Linear
    out: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, width, *, key):
        first, second = jax.random.split(key)
        self.hidden = eqx.nn.Linear(2, width, key=first)
        self.out = eqx.nn.Linear(width, 2, key=second)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, point, *, key, train):
        hidden = jax.nn.gelu(self.hidden(point))
        return self.out(self.dropout(hidden, key=key, inference=not train))


def moons(count, seed):
    random = np.random.default_rng(seed)
    moon = random.integers(0, 2, count)
    angle = np.pi * (random.uniform(size=count) + moon)
    points = np.stack([np.cos(angle) + moon, np.sin(angle) + 0.5 * moon], axis=1)
    return {"point": points + random.normal(scale=0.1, size=points.shape), "moon": moon}


@dataclass(frozen=True, kw_only=True)
class Moons(plimsoll.OwnRecipe):
    """The fields are options of `plimsoll plan` and `plimsoll train`, their docstrings the help."""

    width: int = 64
    """Of the hidden layer."""
    learning_rate: float = 1e-2
    """At the first step; it falls to 0 along a cosine."""

    def init(self, key):
        """What is learned: the arrays. The rest of the module, like the rate of dropout, is no array."""
        return eqx.filter(Classifier(self.width, key=key), eqx.is_inexact_array)

    def loss(self, params, batch, *, keys, train):
        """`keys` has one key for each example: its dropout is the same however the batch is split."""
        shapes = eqx.filter_eval_shape(Classifier, self.width, key=jax.random.key(0))
        rest = eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)
        model = eqx.combine(params, rest)
        logits = jax.vmap(lambda point, key: model(point, key=key, train=train))(batch["point"], keys)
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["moon"])
        right = jnp.sum(jnp.argmax(logits, axis=-1) == batch["moon"])
        return jnp.sum(nats), nats.size, {"accuracy": (right, nats.size)}

    def data(self):
        return moons(2048, seed=0)

    def validation_data(self):
        return moons(500, seed=1)

    def optimizer(self, steps):
        return optax.adamw(optax.cosine_decay_schedule(self.learning_rate, steps))


recipe = Moons(batch_size=64, steps=200)
