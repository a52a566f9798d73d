"""Sampling: at temperature 0 it is the argmax of a direct forward pass; always the last window; never recompiled."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.models.decoder import Decoder
from plimsoll.models.sampling import continued, make_next_token
from plimsoll.models.shape import DecoderShape
from plimsoll.types import Compute

VOCAB, LENGTH, NO_END = 50, 8, -1


@pytest.fixture(scope="module")
def decoder():
    return Decoder(DecoderShape(vocab=VOCAB, width=16, layers=2, heads=2, inner=32, tied=False), Compute())


@pytest.fixture(scope="module")
def params(decoder):
    return jax.tree.map(lambda leaf: 5 * leaf, jax.jit(decoder.init)(jax.random.key(1)))  # logits far apart


@pytest.fixture(scope="module")
def draw(decoder, params):
    compiled = cache(partial(make_next_token, decoder))

    def draw(prompt, *, known=VOCAB, top_k=0, tokens=20, temperature=0.0, seed=0, end=NO_END):
        next_token = compiled(known=known, top_k=top_k)
        options = {"length": LENGTH, "end": end, "tokens": tokens, "temperature": temperature, "seed": seed}
        ids = list(continued(next_token, params, prompt, **options))
        assert next_token._cache_size() == 1  # compiled once, whatever the length of the context
        return ids

    return draw


@pytest.fixture(scope="module")
def logits_of(decoder, params):
    """Logits after each token of at most a window, by a direct forward pass."""
    forward = jax.jit(lambda ids: decoder.logits(params, decoder.hidden(params, ids)[0]))
    return lambda ids: forward(jnp.asarray([ids]))


def likeliest_after(logits_of, ids, first):
    """The argmax after `ids[:first]`, `ids[:first + 1]`, ...: up to a window by one unpadded pass, then by windows."""
    likeliest = jnp.argmax(logits_of(ids[:LENGTH]), -1).tolist()[first - 1 :]
    for end in range(max(first, LENGTH + 1), len(ids)):
        likeliest.append(int(jnp.argmax(logits_of(ids[end - LENGTH : end])[-1])))
    return likeliest


@pytest.mark.parametrize("prompt", [[3], list(range(8)), list(range(30))])
def test_at_temperature_0_every_token_is_the_argmax_of_a_direct_forward_pass(logits_of, draw, prompt):
    ids = draw(prompt)
    assert len(ids) == 20
    assert len(set(ids)) > 1
    assert ids == likeliest_after(logits_of, prompt + ids, len(prompt))


def test_it_stops_at_end_of_text(draw):
    ids = draw([3])
    assert draw([3], end=ids[5]) == ids[: ids.index(ids[5])]


def test_a_seed_fixes_the_text_and_another_changes_it(draw):
    one, again, other = (draw([3], temperature=1.0, seed=seed) for seed in (7, 7, 8))
    assert one == again != other


def test_the_likeliest_of_one_is_the_likeliest(draw):
    assert draw([3], temperature=2.0, top_k=1) == draw([3])


def test_only_the_top_k_are_drawn(decoder, params, logits_of):
    next_token = make_next_token(decoder, known=VOCAB, top_k=3)
    window = np.zeros(LENGTH, np.int32)
    three = set(np.argsort(logits_of([0])[0])[-3:].tolist())
    drawn = {
        int(next_token(params, window, np.int32(0), np.uint32(0), np.int32(index), np.float32(10)))
        for index in range(60)
    }
    assert drawn == three


def test_rows_of_the_embedding_without_a_token_are_never_drawn(draw):
    assert max(draw([3], known=10, temperature=50.0, tokens=100)) == 9
