"""A network of convolutions, learned with Adam, whose sizes `drawn.draw_convolutions` writes into a copy of this file.

plimsoll train benchmarks/convolutional.py --memory 1GiB
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

IMAGE = (16, 16, 3)
LAYERS = [(5, 2, 96, 1), (5, 2, 96, 1)]
"""Of each layer the kernel, the stride, the features and the groups."""
AXES = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NHWDC", "HWDIO", "NHWDC")}


def images(count, seed):
    random = np.random.default_rng(seed)
    picture = random.normal(size=(count, *IMAGE)).astype(np.float32)
    return {"picture": picture, "kind": random.integers(0, 10, count)}


def init(key):
    *image, features = IMAGE
    kernels = []
    for kernel, _, filters, groups in LAYERS:
        key, now = jax.random.split(key)
        shape = (*[kernel] * len(image), features // groups, filters)
        kernels.append(jax.random.normal(now, shape) * np.prod(shape[:-1]) ** -0.5)
        features = filters
    return {"kernels": kernels, "out": jnp.zeros((features, 10))}


def loss(params, batch):
    x = batch["picture"]
    axes = AXES[x.ndim - 2]
    for kernel, (_, stride, _, groups) in zip(params["kernels"], LAYERS, strict=True):
        strides = (stride,) * (x.ndim - 2)
        x = jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=axes, feature_group_count=groups)
        x = jax.nn.relu(x)
    logits = jnp.mean(x, axis=range(1, x.ndim - 1)) @ params["out"]
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["kind"])
    return jnp.sum(nats), nats.size


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: images(1024, seed=0),
    validation_data=lambda: images(256, seed=1),
    optimizer=lambda steps: optax.adam(1e-3),
    batch_size=256,
    steps=8,
)
