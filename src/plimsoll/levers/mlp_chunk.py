"""The feed-forward part of a block, a few positions of the sequence at a time.

It treats every position alone, and is wider than the stream: gate, up and their product of 14,336 numbers a token, and
a gradient of each, are 172 KB a token in bfloat16, where the stream itself has 8 KB. Here `mlp_chunk` positions go
through norm, feed-forward part and residual at a time, and the backward pass computes each chunk again from its rows of
the stream. Bekman et al. 2025, Arctic Long Sequence Training (TiledMLP), https://arxiv.org/abs/2506.13996, section 3.1.

Price: one more forward pass of the feed-forward part, where the block would not have been computed again anyway
(`remat`), and products of fewer rows. Leave it off (0) where a sequence is no longer than some chunks, and where blocks
keep what they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def in_chunks(
    function: Callable[[Any, Float[Array, "batch rows width"], Any], Float[Array, "batch rows width"]],
    params: Any,
    x: Float[Array, "batch length width"],
    *,
    chunk: int,
) -> Float[Array, "batch length width"]:
    """Returns `function(params, x, 0)` of a function that treats every position alone, `chunk` positions at a time.

    The backward pass keeps `x` alone. A chunk of 0, or one that is no shorter than the sequence, changes nothing.

    Args:
        function: Function of the parameters, of rows of the stream, and of the position of the first of them. It may
            close over settings, but over no array.
        params: Its parameters, of which each may take a gradient.
        x: Stream.
        chunk: Positions at a time; need not divide the length.
    """
    batch, length, width = x.shape
    if not chunk or chunk >= length:
        return function(params, x, 0)
    padded = jnp.pad(x, ((0, 0), (0, -length % chunk), (0, 0)))
    chunks = jnp.moveaxis(padded.reshape(batch, -1, chunk, width), 1, 0)
    step = jax.checkpoint(function, prevent_cse=False)
    firsts = jnp.arange(chunks.shape[0]) * chunk
    _, chunks = jax.lax.scan(lambda carry, part: (carry, step(params, *part)), None, (chunks, firsts))
    return jnp.moveaxis(chunks, 0, 1).reshape(padded.shape)[:, :length]
