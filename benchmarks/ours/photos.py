"""Pictures squeezed through sixteen numbers: `plimsoll ladder benchmarks/ours/photos.py --rungs prefetch`."""

import jax
import numpy as np
import optax

import plimsoll


def data():
    random = np.random.default_rng(0)
    return {"pixels": random.normal(size=(1024, 64, 64, 3)).astype(np.float32)}


def init(key):
    return {"kernel": jax.random.normal(key, (64 * 64 * 3, 16)) / 100}


def loss(params, batch):
    pixels = batch["pixels"].reshape(len(batch["pixels"]), -1)
    return ((pixels @ params["kernel"] @ params["kernel"].T - pixels) ** 2).sum(), pixels.size


recipe = plimsoll.recipe(init=init, loss=loss, data=data, optimizer=optax.adam(1e-4), batch_size=256, steps=100)
