"""A convolutional network with batch norm (Flax NNX) reads digits of 5 x 3 dots, moved and noisy.

plimsoll train docs/examples/flax_batchnorm.py --memory 600MiB
plimsoll train docs/examples/flax_batchnorm.py --memory 600MiB --norm-group 32
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import plimsoll

SIZE, WIDTH = 12, 16
FONT = """
### .#. ### ### #.# ### ### ### ### ###
#.# ##. ..# ..# #.# #.. #.. ..# #.# #.#
#.# .#. ### ### ### ### ### ..# ### ###
#.# .#. #.. ..# ..# ..# #.# ..# #.# ..#
### ### ### ### ..# ### ### ..# ### ###
"""


class Reader(nnx.Module):
    """An image to the logits of ten digits."""

    def __init__(self, rngs):
        self.first = nnx.Conv(1, WIDTH, (3, 3), use_bias=False, rngs=rngs)
        self.first_norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.second = nnx.Conv(WIDTH, 2 * WIDTH, (5, 5), strides=2, use_bias=False, rngs=rngs)
        self.second_norm = nnx.BatchNorm(2 * WIDTH, momentum=0.9, rngs=rngs)
        self.out = nnx.Linear(2 * WIDTH, 10, rngs=rngs)

    def __call__(self, images, *, train):
        x = nnx.relu(self.first_norm(self.first(images), use_running_average=not train))
        x = nnx.relu(self.second_norm(self.second(x), use_running_average=not train))
        return self.out(jax.nn.logsumexp(x, axis=(1, 2)))


def images(count, seed):
    """Returns digits at random places, and which they are."""
    random = np.random.default_rng(seed)
    rows = [row.split() for row in FONT.split("\n") if row]
    glyphs = np.array([[[dot == "#" for dot in row[digit]] for row in rows] for digit in range(10)], np.float32)
    digits = random.integers(0, 10, count)
    canvas = random.normal(0, 0.2, (count, SIZE, SIZE, 1)).astype(np.float32)
    for image, digit in zip(canvas, digits, strict=True):
        top, left = random.integers(0, SIZE - 5), random.integers(0, SIZE - 3)
        image[top : top + 5, left : left + 3, 0] += glyphs[digit]
    return {"image": canvas, "digit": digits.astype(np.int32)}


def init(key):
    weights, statistics = nnx.state(Reader(nnx.Rngs(key)), nnx.Param, nnx.BatchStat)
    return {"trainable": weights, "state": statistics}


def loss(weights, batch, *, state, train):
    structure = nnx.graphdef(nnx.eval_shape(lambda: Reader(nnx.Rngs(0))))
    model = nnx.merge(structure, weights, state, copy=True)
    logits = model(batch["image"], train=train)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["digit"])
    right = jnp.argmax(logits, axis=-1) == batch["digit"]
    metrics = {"accuracy": (jnp.sum(right), len(right))}
    return jnp.sum(nats), len(nats), metrics, nnx.state(model, nnx.BatchStat)


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: images(8_192, seed=1),
    validation_data=lambda: images(1_024, seed=2),
    optimizer=optax.adam(3e-3),
    batch_size=128,
    steps=300,
)
