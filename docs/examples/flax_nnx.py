"""A Flax NNX module reads two numbers, digit by digit, and writes the digits of their sum: 27 + 15 -> 042.

plimsoll train docs/examples/flax_nnx.py --memory 600MiB
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import plimsoll

DIGITS = 4
"""Two numbers of two digits."""
WIDTH = 64


class Adder(nnx.Module):
    """Four digits to the logits of the three digits of the sum."""

    def __init__(self, rngs):
        self.digits = nnx.Embed(10, WIDTH, rngs=rngs)
        self.hidden = nnx.Linear(DIGITS * WIDTH, 4 * WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(4 * WIDTH, rngs=rngs)
        self.out = nnx.Linear(4 * WIDTH, 3 * 10, rngs=rngs)

    def __call__(self, digits):
        read = self.digits(digits).reshape(len(digits), -1)
        return self.out(self.norm(nnx.gelu(self.hidden(read)))).reshape(-1, 3, 10)


def digits_of(number):
    return np.array([int(digit) for digit in number])


class Sums:
    """All 10,000 sums, of which every eleventh is held out. Anything with len() and [index] is a data set."""

    def __init__(self, held_out):
        self.numbers = [n for n in range(10_000) if (n % 11 == 0) == held_out]

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        total = number // 100 + number % 100
        return {"digits": digits_of(f"{number:04}"), "sum": digits_of(f"{total:03}")}


def init(key):
    return nnx.state(Adder(nnx.Rngs(key)), nnx.Param)


def loss(params, batch):
    structure = nnx.graphdef(nnx.eval_shape(lambda: Adder(nnx.Rngs(0))))
    logits = nnx.merge(structure, params)(batch["digits"])
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["sum"])
    whole = jnp.all(jnp.argmax(logits, axis=-1) == batch["sum"], axis=-1)
    return jnp.sum(nats), nats.size, {"right_sums": (jnp.sum(whole), whole.size)}  # per digit, and per sum


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: Sums(held_out=False),
    validation_data=lambda: Sums(held_out=True),
    optimizer=lambda steps: optax.adamw(optax.cosine_decay_schedule(3e-3, steps), weight_decay=0.1),
    batch_size=128,
    steps=600,
)
