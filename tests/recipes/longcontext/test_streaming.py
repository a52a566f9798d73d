"""Reading onward from what is remembered says what reading from the beginning says, and remembers no more for it."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eigen_examples import LENGTH, MODELS, VOCAB, hidden_of, parameters, task_of, tokens
from plimsoll.recipes.longcontext.streaming import Stream, continued

STRICT = True


@cache
def stream_of(name):
    stream = Stream(task_of(MODELS[name]), context=LENGTH)
    return stream, jax.jit(stream.hidden)


FIXED = task_of(MODELS["fixed"])


@pytest.mark.parametrize("name", MODELS)
def test_token_by_token_gives_what_all_at_once_gives(name):
    stream, onward = stream_of(name)
    ids = tokens()[:, :-1].astype(np.int32)
    memory, found = stream.start(2), []
    held = jax.tree.map(jnp.shape, memory)
    for piece in [ids[:, :30], *np.split(ids[:, 30:], LENGTH - 30, axis=1)]:  # some at once, then one by one
        hidden, memory = onward(parameters(name), memory, piece)
        found.append(hidden)
        assert jax.tree.map(jnp.shape, memory) == held
    np.testing.assert_allclose(np.concatenate(found, axis=1), hidden_of(MODELS[name])(parameters(name), ids), atol=3e-4)
    assert int(memory["position"]) == LENGTH


def test_a_layer_that_attends_to_all_sees_as_many_tokens_as_a_window_of_training_had():
    stream = Stream(task_of(MODELS["attending"]), context=8)
    windowed = Stream(task_of(MODELS["windowed"]), context=LENGTH)
    assert stream.window == 8
    assert windowed.window == MODELS["windowed"].attention_window
    assert stream.start()["blocks"]["attending"]["keys"].shape[3] == 8


@pytest.mark.parametrize("prompt", [1, 259])
def test_the_likeliest_continuation_is_that_of_the_whole_model(prompt):
    params, ids = parameters("fixed"), [int(one) for one in tokens(batch=1, length=prompt - 1)[0]]
    options = {"known": VOCAB, "end": VOCAB, "temperature": 0.0, "top_k": 0, "seed": 0, "length": LENGTH}
    found = list(continued(FIXED, params, ids, tokens=4, **options))
    whole = np.asarray([[*ids, *found]], np.int32)
    logits = FIXED.decoder.logits(params, hidden_of(MODELS["fixed"])(params, whole)[0])
    assert found == [int(one) for one in jnp.argmax(logits[len(ids) - 1 : -1], axis=-1)]


def test_text_ends_where_the_document_does_and_a_seed_writes_it_again():
    options = {"known": VOCAB, "length": LENGTH, "temperature": 1.0, "top_k": 10, "tokens": 8}

    def text(*, seed, end=VOCAB):
        return list(continued(FIXED, parameters("fixed"), [1, 2], seed=seed, end=end, **options))

    one = text(seed=3)
    assert len(one) == 8
    assert text(seed=3) == one != text(seed=4)
    assert text(seed=3, end=one[4]) == one[: one.index(one[4])]
