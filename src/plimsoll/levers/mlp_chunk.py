"""Computes the feed-forward part of a block for a few positions of the sequence at a time.

The feed-forward part treats every position alone, and is wider than the residual stream. If gate, up and their product
have 14,336 columns, they and their gradients take 172 KB a token in bfloat16; the stream takes 8 KB. Here `mlp_chunk`
positions go through norm, feed-forward part and residual at a time, and the backward pass computes each chunk again
from its rows of the stream. Bekman et al. 2025, Arctic Long Sequence Training (TiledMLP),
https://arxiv.org/abs/2506.13996, section 3.1.

Price: products of fewer rows, and one more forward pass of the feed-forward part unless `remat` computes the block
again anyway. Leave it off (0) for a sequence of only a few chunks, and if `remat` keeps activations.
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
    """Returns `function(params, x, 0)`, computed for `chunk` positions at a time.

    Only `x` is kept for the backward pass. A chunk of 0, or of at least the length, calls `function` once.

    Args:
        function: Function from parameters, rows of the residual stream and the position of the first row to new rows.
            It must treat every position alone, and close over no array.
        params: Parameters of the function; each may have a gradient.
        x: Residual stream.
        chunk: Positions of a chunk; need not divide the length.
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
