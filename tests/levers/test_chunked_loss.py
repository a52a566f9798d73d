"""Chunking the loss: the same number and gradients, only a chunk of logits at a time, and no logits twice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiled_bytes import temporary_bytes
from plimsoll.levers.chunked_loss import IGNORE, LIFT, chunked_cross_entropy, each_nats, nats_in_one_pass
from plimsoll.levers.precision import Form, dot, dot_rows
from plimsoll.planner.flops import dot_flops


def example(*, tokens, width, vocab):
    random = np.random.default_rng(0)
    hidden = random.normal(size=(tokens, width)).astype(np.float32)
    weights = random.normal(size=(width, vocab)).astype(np.float32) / width**0.5
    labels = random.integers(0, vocab, tokens).astype(np.int32)
    labels[random.random(tokens) < 0.3] = IGNORE
    return hidden, weights, labels


def multiply(rows, weights):
    return rows @ weights


def unchunked(hidden, weights, labels, *, head=multiply):
    """What chunks must not change: plain JAX, differentiated by JAX."""
    return jnp.sum(each_nats(head(hidden, weights), labels))


def chunked(chunk, head=multiply):
    return partial(chunked_cross_entropy, head=head, chunk=chunk)


def value_and_grads(loss):
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def assert_near(actual, expected, tolerance):
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other)


@pytest.mark.parametrize("chunk", [1, 7, 200])  # of 96 tokens: divides, does not, exceeds
def test_chunking_changes_neither_the_loss_nor_its_gradients(chunk):
    arguments = example(tokens=96, width=16, vocab=50)
    assert_near(value_and_grads(chunked(chunk))(*arguments), value_and_grads(unchunked)(*arguments), 1e-6)


def test_what_comes_after_the_sum_reaches_both_gradients():
    """The gradients are made before it is known: by a mean, a scale, or a second use of hidden states and weights."""
    arguments = example(tokens=96, width=16, vocab=50)

    def mean_and_more(loss, hidden, weights, labels):
        mean = loss(hidden, weights, labels) / jnp.sum(labels != IGNORE, dtype=jnp.float32)
        return 3 * mean**2 + jnp.sum(jnp.sin(weights)) + jnp.sum(hidden**2)

    actual = value_and_grads(partial(mean_and_more, chunked(7)))(*arguments)
    assert_near(actual, value_and_grads(partial(mean_and_more, unchunked))(*arguments), 1e-6)


@pytest.mark.parametrize(("precision", "tied"), [("float32", False), ("bfloat16", True)])
def test_the_models_dots_give_the_same_in_chunks(precision, tied):
    hidden, weights, labels = example(tokens=64, width=16, vocab=50)
    weights = np.ascontiguousarray(weights.T) if tied else weights
    head = partial(dot_rows if tied else dot, compute=Form(precision, "cpu"))
    expected = value_and_grads(partial(unchunked, head=head))(hidden, weights, labels)
    assert_near(value_and_grads(chunked(16, head))(hidden, weights, labels), expected, 1e-6)


@pytest.mark.parametrize("chunk", [0, 10])
def test_the_loss_is_the_sum_of_the_counted_nats_and_other_tokens_have_no_gradient(chunk):
    hidden, weights, labels = example(tokens=33, width=8, vocab=20)
    logits = np.float64(hidden) @ np.float64(weights)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(33), labels]
    both = value_and_grads(chunked(chunk))
    actual, (to_hidden, _) = both(hidden, weights, labels)
    assert float(actual) == pytest.approx(expected[labels != IGNORE].sum(), rel=1e-6)
    assert float(jax.jit(chunked(chunk))(hidden, weights, labels)) == pytest.approx(float(actual), rel=1e-6)
    np.testing.assert_array_equal(to_hidden[labels == IGNORE], 0)
    assert np.abs(to_hidden[labels != IGNORE]).min() > 0
    value, gradients = both(hidden, weights, np.full(33, IGNORE, np.int32))
    assert value == 0
    assert not any(np.any(gradient) for gradient in gradients)


def test_in_float16_a_lift_saves_what_small_probabilities_weigh():
    """With 20,000 words as likely as one another, and a label nobody counts on, a probability is 5e-5: subnormal."""
    hidden, weights, labels = example(tokens=16, width=8, vocab=20_000)
    hidden, labels = hidden * 0.1, np.zeros_like(labels)

    def to_hidden(precision, **options):
        head = partial(dot, compute=Form(precision, "cpu"))
        return value_and_grads(partial(chunked(4, head), **options))(hidden, weights, labels)[1][1]

    exact = to_hidden("float32")[:, 1:]  # of the words that are no label
    error = {lift: np.linalg.norm(to_hidden("float16", lift=lift)[:, 1:] - exact) for lift in (1.0, LIFT)}
    assert error[LIFT] < 1e-3 * np.linalg.norm(exact)
    assert error[LIFT] < error[1.0]


def shapes(*, tokens, width, vocab):
    return jnp.zeros((tokens, width)), jnp.zeros((width, vocab)), jnp.zeros(tokens, jnp.int32)


def test_a_chunk_of_logits_takes_the_place_of_all_of_them():
    tokens, width, vocab, chunk = 4096, 64, 8192, 256
    arguments = shapes(tokens=tokens, width=width, vocab=vocab)
    whole = temporary_bytes(value_and_grads(chunked(0)), *arguments)
    in_chunks = temporary_bytes(value_and_grads(chunked(chunk)), *arguments)
    around = 4 * width * vocab + 2 * 4 * tokens * width  # the head's gradient and the padded rows exist either way
    assert in_chunks <= 2 * 4 * chunk * vocab + around  # logits and their gradient
    assert in_chunks < whole / 8
    assert whole >= 4 * tokens * vocab  # XLA may write the gradient over the logits


@pytest.mark.parametrize("chunk", [0, 256])
def test_no_logits_are_computed_twice(chunk):
    """Three multiplies by the head, of which the loss alone needs one."""
    tokens, width, vocab = 1024, 16, 512
    arguments = shapes(tokens=tokens, width=width, vocab=vocab)
    once = 2.0 * tokens * width * vocab
    assert dot_flops(jax.make_jaxpr(value_and_grads(chunked(chunk)))(*arguments)) == 3 * once
    assert dot_flops(jax.make_jaxpr(chunked(chunk))(*arguments)) == once


def test_a_gradient_in_one_pass_is_the_same():
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.normal(size=(12, 40)) * 4, jnp.float32)
    labels = jnp.asarray(random.integers(-1, 40, 12), jnp.int32)
    towards = jnp.asarray(random.normal(size=12), jnp.float32)

    def gradient(nats):
        return jax.jit(jax.grad(lambda logits: jnp.sum(towards * nats(logits, labels))))(logits)

    np.testing.assert_array_equal(nats_in_one_pass(logits, labels), each_nats(logits, labels))
    np.testing.assert_allclose(gradient(nats_in_one_pass), gradient(each_nats), atol=1e-6)
