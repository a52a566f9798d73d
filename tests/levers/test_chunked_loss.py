"""Chunking the loss: the same number and gradients, and only a chunk of logits at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_bytes import temporary_bytes

from plimsoll.levers.chunked_loss import IGNORE, chunked_cross_entropy, cross_entropy, logits_bytes


def example(*, tokens, width, vocab):
    random = np.random.default_rng(0)
    hidden = random.normal(size=(tokens, width)).astype(np.float32)
    head = random.normal(size=(width, vocab)).astype(np.float32) / width**0.5
    labels = random.integers(0, vocab, tokens).astype(np.int32)
    labels[random.random(tokens) < 0.3] = IGNORE
    return hidden, head, labels


def loss_of(loss):
    return lambda hidden, head, labels: loss(hidden, lambda rows: rows @ head, labels)


def value_and_grads(loss):
    return jax.jit(jax.value_and_grad(loss_of(loss), argnums=(0, 1)))


@pytest.mark.parametrize("chunk", [0, 1, 7, 32, 96, 200])  # of 96 tokens: off, divides, does not, exceeds
def test_chunking_changes_neither_the_loss_nor_its_gradients(chunk):
    arguments = example(tokens=96, width=16, vocab=50)
    expected = value_and_grads(cross_entropy)(*arguments)
    actual = value_and_grads(partial(chunked_cross_entropy, chunk=chunk))(*arguments)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [0, 10])
def test_the_loss_is_the_sum_of_the_counted_nats(chunk):
    hidden, head, labels = example(tokens=33, width=8, vocab=20)
    logits = np.float64(hidden) @ np.float64(head)
    nats = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(33), labels]
    actual = jax.jit(loss_of(partial(chunked_cross_entropy, chunk=chunk)))(hidden, head, labels)
    assert float(actual) == pytest.approx(nats[labels != IGNORE].sum(), rel=1e-6)


@pytest.mark.parametrize("chunk", [0, 10])
def test_tokens_that_are_not_counted_have_no_gradient_even_where_all_are(chunk):
    hidden, head, labels = example(tokens=32, width=8, vocab=20)
    value, (to_hidden, to_head) = value_and_grads(partial(chunked_cross_entropy, chunk=chunk))(hidden, head, labels)
    np.testing.assert_array_equal(to_hidden[labels == IGNORE], 0)
    assert np.abs(to_hidden[labels != IGNORE]).min() > 0
    nothing = jnp.full(32, IGNORE)
    value, (to_hidden, to_head) = value_and_grads(partial(chunked_cross_entropy, chunk=chunk))(hidden, head, nothing)
    assert value == 0
    assert not np.any(to_hidden)
    assert not np.any(to_head)


@pytest.mark.parametrize("chunk", [0, 8])
def test_large_logits_do_not_overflow(chunk):
    hidden, head, labels = example(tokens=32, width=8, vocab=20)
    value, grads = value_and_grads(partial(chunked_cross_entropy, chunk=chunk))(hidden * 1e3, head, labels)
    assert np.isfinite(value)
    assert all(np.isfinite(grad).all() for grad in grads)


def test_a_chunk_of_logits_takes_the_place_of_all_of_them():
    tokens, width, vocab, chunk = 4096, 64, 8192, 256
    arguments = (
        jnp.zeros((tokens, width)),
        jnp.zeros((width, vocab)),
        jnp.zeros(tokens, jnp.int32),
    )
    whole = temporary_bytes(value_and_grads(cross_entropy), *arguments)
    chunked = temporary_bytes(value_and_grads(partial(chunked_cross_entropy, chunk=chunk)), *arguments)
    around = 4 * width * vocab + 2 * 4 * tokens * width  # the head's gradient and the padded rows exist either way
    assert chunked <= logits_bytes(tokens=tokens, chunk=chunk, vocab=vocab) + 2 * around
    assert chunked < whole / 8
    assert whole >= logits_bytes(tokens=tokens, chunk=0, vocab=vocab) / 2  # XLA may write the gradient over the logits
