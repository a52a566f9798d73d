"""Tasks small enough to compile in a second: a real decoder, and two that are only a few lines."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.levers.chunked_loss import IGNORE
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.types import Compute, Levers, LossSum

SHAPE = DecoderShape(vocab=64, width=32, layers=1, heads=2, inner=64)


def parameters_of(shape):
    """Number of parameters of a decoder's shape."""
    return sum(math.prod(sides) for sides in shape.leaves().values())


def decoder_task(**levers):
    return NextToken(SHAPE, Compute(levers=Levers(**levers)))


def text_batch(*, examples=16, length=24, seed=0, uneven=True):
    """Token counts that differ from row to row; the first rows are nearly empty, so a whole micro-batch is."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, SHAPE.vocab, (examples, length + 1)).astype(np.int32)
    labels = ids[:, 1:].copy()
    if uneven:
        counted = random.integers(1, length + 1, examples)
        counted[: examples // 8] = 0
        counted[0] = 1
        labels[np.arange(length)[None, :] >= counted[:, None]] = IGNORE
    return {"input_ids": ids[:, :-1], "labels": labels}


class LinearRegression:
    """Least squares, as a plain pytree: nothing of ours but the protocol."""

    def init(self, key):
        return {"trainable": {"slope": jnp.zeros((3,)), "bias": jnp.zeros(())}, "frozen": {"scale": jnp.ones(())}}

    def loss(self, params, carry, batch, keys, *, train):
        weights = params["trainable"]
        guess = params["frozen"]["scale"] * (batch["x"] @ weights["slope"] + weights["bias"])
        error = (guess - batch["y"]) ** 2
        close = LossSum(jnp.sum((error < 0.01).astype(jnp.float32)), jnp.float32(error.size))
        return LossSum(jnp.sum(error), jnp.float32(error.size)), None, {"close": close}


class DroppedRegression(LinearRegression):
    """The same with half of the inputs dropped, by the keys the step hands out."""

    def loss(self, params, carry, batch, keys, *, train):
        if train:
            kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (3,)))(keys)
            batch = batch | {"x": jnp.where(kept, batch["x"] * 2.0, 0.0)}
        return super().loss(params, carry, batch, keys, train=train)


def regression_batch(*, examples=16, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(examples, 3)).astype(np.float32)
    return {"x": x, "y": (x @ np.float32([1.0, -2.0, 0.5]) + 0.25).astype(np.float32)}


def relative_distance(one, other):
    """Norm of the difference over the norm, of whole trees."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    apart = sum(float(np.sum((np.float64(a) - np.float64(b)) ** 2)) for a, b in pairs)
    size = sum(float(np.sum(np.float64(b) ** 2)) for _, b in pairs)
    return (apart / size) ** 0.5
