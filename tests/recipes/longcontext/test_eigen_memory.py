"""Bytes of a compiled gradient over long windows: they grow with the length alone, and not with the vocabulary's."""

from dataclasses import replace
from functools import cache

import jax
import pytest

from eigen_examples import TINY
from plimsoll.recipes.longcontext.task import LongTokens
from plimsoll.types import Compute

STRICT = True


@cache
def temporaries(length, vocab=256, chunk=64):
    """It is never run."""
    task = LongTokens(replace(TINY, vocab=vocab, chunk_size=256), Compute(remat="block", loss_chunk=chunk))

    def loss(weights, batch, keys):
        return task.loss({"trainable": weights}, None, batch, keys, train=True)[0].total

    weights = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))["trainable"]
    batch = {"tokens": jax.ShapeDtypeStruct((1, length + 1), "uint16")}
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    return jax.jit(jax.grad(loss)).lower(weights, batch, keys).compile().memory_analysis().temp_size_in_bytes


@pytest.fixture(scope="module")
def by_length():
    return [temporaries(length) for length in (2048, 4096, 8192)]


def test_memory_grows_with_the_length_and_not_with_its_square(by_length):
    short, middle, long = by_length
    assert (long - middle) / 4096 == pytest.approx((middle - short) / 2048, rel=0.05)


def test_there_are_no_logits_of_all_tokens():
    """Of 4,096 tokens over 2,304 ids they would be 36 MiB, and so much more is needed where they are made."""
    logits = 4 * 4096 * 2304
    in_chunks = temporaries(4096, vocab=2304)
    assert in_chunks - temporaries(4096) < logits / 8
    assert temporaries(4096, vocab=2304, chunk=0) - in_chunks > logits
