"""The decoder against a second one written in plain NumPy float64, and the properties it must have."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.levers.chunked_loss import IGNORE
from plimsoll.models.decoder import Decoder
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.models.sizing import sized
from plimsoll.types import Compute, Levers
from small_tasks import parameters_of

TINY = DecoderShape(vocab=50, width=32, layers=2, heads=2, inner=48)
UNTIED = DecoderShape(vocab=50, width=32, layers=2, heads=2, inner=48, tied=False)
LENGTH = 12


def ids(seed=0, *, batch=2, length=LENGTH):
    return np.random.default_rng(seed).integers(0, TINY.vocab, (batch, length)).astype(np.int32)


@cache
def parameters(shape):
    """Larger than at the start of training, so that attention and norms have something to say."""
    params = jax.jit(Decoder(shape, Compute()).init)(jax.random.key(1))
    random = np.random.default_rng(2)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape) * 0.3 + (x.ndim == 1), x.dtype), params)


@cache
def jitted_logits(shape, compute):
    decoder = Decoder(shape, compute)
    return jax.jit(lambda params, ids: decoder.logits(params, decoder.hidden(params, ids)))


def reference_logits(params, ids, *, heads):
    """The same model once more: NumPy, float64, a loop where the other has a scan."""
    p = jax.tree.map(np.float64, jax.device_get(params))

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def turned(x):  # batch, length, heads, width: pairs (i, i + half) as complex numbers
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
        spun = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[None, :, None, :]
        return np.concatenate([spun.real, spun.imag], axis=-1)

    x = p["embedding"][ids]
    batch, length, width = x.shape
    for layer in range(p["blocks"]["query"]["kernel"].shape[0]):
        b = jax.tree.map(lambda leaf, layer=layer: leaf[layer], p["blocks"])
        h = norm(x, b["attention_norm"]["scale"])
        query, key, value = (
            (h @ b[name]["kernel"]).reshape(batch, length, heads, -1) for name in ("query", "key", "value")
        )
        scores = np.einsum("blhw,bmhw->bhlm", turned(query), turned(key)) / np.sqrt(width / heads)
        scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("bhlm,bmhw->blhw", weights, value).reshape(batch, length, width)
        x = x + mixed @ b["out"]["kernel"]
        h = norm(x, b["feed_norm"]["scale"])
        gate = h @ b["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ b["up"]["kernel"])) @ b["down"]["kernel"]
    head = p["head"] if "head" in p else p["embedding"].T
    return norm(x, p["norm"]) @ head


CASES = {
    "tied": (TINY, LENGTH, {}, 1e-5),
    "untied": (UNTIED, LENGTH, {}, 1e-5),
    "queries in blocks": (TINY, 200, {}, 1e-5),
    "attention in chunks": (TINY, LENGTH, {"attention_chunk": 5, "remat": "block"}, 1e-5),
    "tpu": (TINY, LENGTH, {"platform": "tpu"}, 1e-5),
    "bfloat16": (TINY, LENGTH, {"precision": "bfloat16"}, 0.05),
    "float16": (TINY, LENGTH, {"precision": "float16"}, 0.01),
}
"""Shape, length, levers, and the error that they may make."""


@pytest.mark.parametrize("case", CASES)
def test_the_decoder_computes_what_plain_numpy_computes(case):
    shape, length, levers, tolerance = CASES[case]
    seen = ids(length=length)
    actual = jitted_logits(shape, Compute(levers=Levers(**levers)))(parameters(shape), seen)
    expected = reference_logits(parameters(shape), seen, heads=shape.heads)
    assert actual.dtype == np.float32
    assert np.linalg.norm(actual - expected) < tolerance * np.linalg.norm(expected)
    assert np.abs(expected).std() > 0.1


@settings(max_examples=examples(15), deadline=None)
@given(at=st.integers(0, LENGTH - 1), change=st.integers(1, TINY.vocab - 1))
def test_a_token_changes_the_logits_from_its_position_on_and_none_before(at, change):
    before = ids(batch=1)
    after = before.copy()
    after[0, at] = (after[0, at] + change) % TINY.vocab
    one, other = (np.asarray(jitted_logits(UNTIED, Compute())(parameters(UNTIED), x))[0] for x in (before, after))
    np.testing.assert_array_equal(one[:at], other[:at])
    assert (one[at:] != other[at:]).any(axis=-1).all()


@pytest.mark.parametrize("window", [0, 3])
def test_documents_of_a_row_are_read_as_each_of_them_alone(window):
    """Documents of 7 and 5 tokens: longer than the window."""
    decoder = Decoder(replace(TINY, window=window), Compute())
    hidden, params = jax.jit(decoder.hidden), parameters(TINY)
    row = ids(batch=1)
    segments = np.repeat(np.arange(2, dtype=np.int32), (7, 5))[None]
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in (7, 5)])[None]
    together = hidden(params, row, segments=segments, positions=positions)[0]
    alone = [hidden(params, document)[0] for document in (row[:, :7], row[:, 7:])]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-5)
    assert not np.allclose(together, hidden(params, row)[0], rtol=1e-3)


@pytest.mark.parametrize("shape", [TINY, UNTIED, None], ids=["tied", "untied", "1B"])
def test_the_formula_counts_every_parameter(shape):
    shape = shape or sized(10**9, vocab=50_257)
    params = jax.eval_shape(Decoder(shape, Compute()).init, jax.random.key(0))  # a billion, and none allocated
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters_of(shape)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_the_loss_at_the_start_is_that_of_guessing():
    task = NextToken(TINY, Compute())
    batch = {"input_ids": ids(), "labels": ids(1)}
    params, loss_of = jax.jit(task.init)(jax.random.key(0)), jax.jit(partial(task.loss, train=True))
    loss, _, _ = loss_of(params, None, batch, None)
    assert float(loss.total / loss.weight) == pytest.approx(np.log(TINY.vocab), rel=0.02)
    batch["labels"][:, 5:] = IGNORE
    assert float(loss_of(params, None, batch, None)[0].weight) == 10
