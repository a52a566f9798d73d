"""Documents one after the other: the attention of blocks, and its gradients, whatever they are cut into."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.levers.attention import causal_attention
from plimsoll.levers.attention_documents import by_documents
from plimsoll.types import Compute, Levers


def by_xla(query, key, value, length):
    """What a card asks of cuDNN."""
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=True, query_seq_lengths=length, key_value_seq_lengths=length, implementation="xla"
    )


def example(lengths, *, heads=4, key_heads=2, width=8):
    draw = np.random.default_rng(0)
    rows, length = len(lengths), sum(lengths[0])
    shapes = [(rows, count, length, width) for count in (heads, key_heads, key_heads, heads)]
    *arrays, towards = (jnp.asarray(draw.standard_normal(shape), jnp.float32) for shape in shapes)
    segments = np.stack([np.repeat(np.arange(len(row)), row) for row in lengths]).astype(np.int32)
    return arrays, towards, segments


def with_gradients(attend, arrays, towards):
    """Result, and the gradients for a cotangent."""

    @jax.jit
    def both(*arrays):
        mixed, pull = jax.vjp(attend, *arrays)
        return mixed, *pull(towards)

    with jax.numpy_dtype_promotion("standard"):
        return both(*arrays)


LENGTHS = {
    "several rows": [[3, 17, 1, 11], [32], [30, 2]],
    "the last one is cut short": [[9, 23]],
    "every size": [[1, 2, 5, 20, 4]],
}


@pytest.mark.slow_cases("several rows")
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_it_is_attention_in_blocks(lengths, monkeypatch):
    monkeypatch.setattr("plimsoll.levers.attention_documents.SMALLEST", 2)
    arrays, towards, segments = example(lengths)
    blocks = partial(causal_attention, compute=Compute(levers=Levers(attention_chunk=8)), segments=segments)
    mixed, *gradients = with_gradients(lambda *arrays: by_documents(*arrays, segments, by_xla), arrays, towards)
    expected, *expected_gradients = with_gradients(blocks, arrays, towards)
    np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_lies_behind_a_document_is_neither_read_nor_written():
    """Also where the kernel leaves it undefined, as cuDNN may."""
    arrays, towards, segments = example([[5, 7, 4]])

    def undefined_behind(query, key, value, length):
        behind = jnp.arange(query.shape[1])[None, :, None, None] >= length
        return jnp.where(behind, jnp.nan, by_xla(query, key, value, length))

    found = with_gradients(lambda *arrays: by_documents(*arrays, segments, undefined_behind), arrays, towards)
    assert all(jnp.all(jnp.isfinite(one)) for one in found)
