"""A small network on arrays: the recipe of own_recipe_speed.py, for plimsoll and for a bare loop."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

FEATURES, CLASSES, EXAMPLES = 32, 10, 20_000


@dataclass(frozen=True, kw_only=True)
class Arrays(plimsoll.OwnRecipe):
    """Two hidden layers that learn the class of a noisy point."""

    width: int = 256
    """Width of the two hidden layers."""

    def init(self, key):
        sizes = FEATURES, self.width, self.width, CLASSES
        return [
            {"weights": jax.random.normal(key, (rows, columns)) * rows**-0.5, "bias": jnp.zeros(columns)}
            for key, rows, columns in zip(jax.random.split(key, 3), sizes[:-1], sizes[1:], strict=True)
        ]

    def loss(self, params, batch):
        values = batch["x"]
        for layer in params[:-1]:
            values = jax.nn.relu(values @ layer["weights"] + layer["bias"])
        logits = values @ params[-1]["weights"] + params[-1]["bias"]
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        right = jnp.sum(jnp.argmax(logits, axis=-1) == batch["y"])
        return jnp.sum(nats), nats.size, {"accuracy": (right, nats.size)}

    def data(self):
        random = np.random.default_rng(0)
        classes = random.integers(0, CLASSES, EXAMPLES)
        centers = random.normal(size=(CLASSES, FEATURES))
        points = centers[classes] + 2.0 * random.normal(size=(EXAMPLES, FEATURES))
        return {"x": points.astype(np.float32), "y": classes.astype(np.int32)}

    def optimizer(self, steps):
        return optax.adam(1e-3)


recipe = Arrays()
