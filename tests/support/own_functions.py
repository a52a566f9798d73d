"""A loss, an init and data as a user has them in a script: a small network that fits a line."""

import jax
import jax.numpy as jnp
import numpy as np

BATCH = 8


def init(key):
    first, second = jax.random.split(key)
    return {"hidden": jax.random.normal(first, (3, 16)), "out": jax.random.normal(second, (16,)) * 0.1}


def errors(params, batch):
    points, values = batch
    return (jnp.tanh(points @ params["hidden"]) @ params["out"] - values) ** 2


def loss(params, batch):
    squares = errors(params, batch)
    return jnp.sum(squares), squares.size, {"largest": (jnp.sum(squares), squares.size)}


def mean(params, batch):
    return jnp.mean(errors(params, batch))


def data(count=80, seed=0):
    points = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    return points, points @ np.array([1.0, -2.0, 0.5], np.float32)


def shapes():
    params = jax.eval_shape(init, jax.random.key(0))
    points, values = data(BATCH)
    return params, (jax.ShapeDtypeStruct(points.shape, "float32"), jax.ShapeDtypeStruct(values.shape, "float32"))
