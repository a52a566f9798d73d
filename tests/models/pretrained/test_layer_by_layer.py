"""A published model, layer by layer: its parts make up its loss, with documents and windows."""

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.models.language import NextToken
from plimsoll.types import IGNORE, Compute, Levers
from pretrained_folders import GEMMA_3

SEGMENTS = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2], [0] * 12], np.int32)


def batch():
    ids = np.random.default_rng(0).integers(0, GEMMA_3.vocab, (2, 13)).astype(np.int32)
    labels = np.where(np.arange(12) % 5 == 4, IGNORE, ids[:, 1:]).astype(np.int32)
    starts = np.array([[0] * 5 + [5] * 6 + [11], [0] * 12], np.int32)
    return {
        "input_ids": ids[:, :-1], "labels": labels, "segments": SEGMENTS,
        "positions": (np.arange(12, dtype=np.int32) - starts).astype(np.int32),
    }  # fmt: skip


def test_its_parts_make_up_its_loss():
    task = NextToken(GEMMA_3, Compute(levers=Levers(loss_chunk=8)))
    params = jax.jit(task.init)(jax.random.key(0))["trainable"]

    def in_parts(params, given):
        outer = {name: part for name, part in params.items() if name != task.stacked}
        x = task.enter(outer, given)
        for number in range(GEMMA_3.layers):
            layer = jax.tree.map(lambda leaf, number=number: leaf[number], params[task.stacked])
            x = task.block(layer, x, given, jnp.int32(number))
        return task.leave(outer, x, given)[0]

    whole = jax.jit(lambda params, given: task.loss({"trainable": params}, None, given, None, train=True)[0])
    for one, other in zip(jax.jit(in_parts)(params, batch()), whole(params, batch()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
