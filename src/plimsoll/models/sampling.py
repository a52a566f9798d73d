"""Samples text from a language model by one jitted function of fixed shapes, called once per token.

Each token takes a forward pass over a window of fixed length, so that nothing is recompiled. A context longer than the
window loses its oldest tokens. There is no cache of keys and values: the recipes' models take milliseconds a window,
and the moving window would make a cache's rotary positions wrong. Long windows would need a cache.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from plimsoll.models.decoder import Decoder

SHORTEST = 64
"""Tokens of the shortest window."""
NextToken = Callable[..., Array]
"""Function `(params, window, last, seed, index, temperature)` that returns the id after `window[last]`. `index` is the
number of ids sampled before."""


def make_next_token(decoder: Decoder, *, known: int, top_k: int = 0) -> NextToken:
    """Returns a function that samples from the `top_k` likeliest of the first `known` ids (0: from all).

    Temperature 0 takes the likeliest id. `known` is the tokenizer's vocabulary size; the embedding may have more rows.
    """
    rows = min(known, decoder.shape.vocab)

    @jax.jit
    def next_token(params, window, last, seed, index, temperature):
        hidden = decoder.hidden(params, window[None])[0]  # attention is causal: tokens after `last` have no effect
        logits = decoder.logits(params, jax.lax.dynamic_slice_in_dim(hidden, last, 1))[0][:rows]
        return sampled_id(logits, top_k=top_k, seed=seed, index=index, temperature=temperature)

    return next_token


def sampled_id(
    logits: Float[Array, " known"], *, top_k: int, seed: Array, index: Array, temperature: Array
) -> Int[Array, ""]:
    """Returns an id, sampled from the `top_k` likeliest (0: from all). Equal seed and token index give equal ids."""
    if 0 < top_k < len(logits):
        logits = jnp.where(logits < jax.lax.top_k(logits, top_k)[0][-1], -jnp.inf, logits)
    key = jax.random.fold_in(jax.random.key(seed), index)
    at_random = jax.random.categorical(key, logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, at_random, jnp.argmax(logits))


def window_for(tokens: int, *, longest: int) -> int:
    """Returns a window length for `tokens` tokens: a power of two from 64, or `longest`, so that few are compiled."""
    return min(longest, max(SHORTEST, 1 << (tokens - 1).bit_length()))


def continued(
    next_token: NextToken,
    params: dict,
    prompt: Sequence[int],
    *,
    length: int,
    end: int,
    tokens: int,
    temperature: float,
    seed: int,
    ends: Collection[int] = (),
) -> Iterator[int]:
    """Yields at most `tokens` ids after the prompt. Stops before the id `end` or an id in `ends`.

    The model sees the latest `length` tokens.
    """
    recent = [int(token) for token in prompt][-length:]
    window = np.zeros(length, np.int32)
    for index in range(tokens):
        window[: len(recent)] = recent
        place, draw = np.int32(len(recent) - 1), np.int32(index)
        token = int(next_token(params, window, place, np.uint32(seed % 2**32), draw, np.float32(temperature)))
        if token == end or token in ends:
            return
        yield token
        recent = [*recent, token][-length:]
