"""Small models of linear recurrences, with every option, and weights that make each part of them count."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.recipes.longcontext.model import Eigen
from plimsoll.recipes.longcontext.task import LongTokens
from plimsoll.recipes.specs import TokenSpec
from plimsoll.types import Compute, Levers

LENGTH, VOCAB = 67, 50
SPEC = TokenSpec(arrays={}, vocab=VOCAB, length=LENGTH)
TINY = Eigen(width=32, layers=2, inner=48, states=5, chunk_size=16)
ATTENDING = replace(TINY, attention_every=2, heads=2)
WINDOWED = replace(ATTENDING, attention_window=20)
PLAIN = Compute()
MODELS = {"fixed": TINY, "attending": ATTENDING, "windowed": WINDOWED}


def tokens(*, batch=2, length=LENGTH, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, (batch, length + 1)).astype(np.uint16)


def task_of(model, compute=PLAIN):
    return LongTokens(model, SPEC, compute)


@cache
def parameters(name):
    """Larger than at the start of training, so that every part has something to say; eigenvalues as they are drawn."""
    drawn = jax.jit(task_of(MODELS[name]).init)(jax.random.key(1))["trainable"]
    random = np.random.default_rng(2)

    def larger(path, leaf):
        if any(getattr(entry, "key", "") == "eigenvalues" for entry in path):
            return leaf
        return leaf + jnp.asarray(random.normal(size=leaf.shape) * 0.1, leaf.dtype)

    return jax.tree_util.tree_map_with_path(larger, drawn)


SCANNED = Compute(levers=Levers(remat="block"))
"""One block is compiled, however many there are."""


@cache
def hidden_of(model, compute=SCANNED):
    return jax.jit(task_of(model, compute).decoder.hidden)
