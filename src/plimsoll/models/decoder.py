"""A decoder-only language model in Llama's layout: pre-norm RMSNorm, rotary positions, SwiGLU, no biases.

Touvron et al. 2023, https://arxiv.org/abs/2302.13971. Pure functions over dicts of arrays: `Decoder.init` makes them,
`Decoder.hidden` reads them. The blocks are stacked along their first axis, and scanned unless `levers.remat.unrolls`:
scanned, compile time, and on a CPU rematerialisation, do not depend on the number of layers.
"""

from collections.abc import Iterator
from itertools import count
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plimsoll.levers.activations import in_float32, stream, swiglu
from plimsoll.levers.attention import causal_attention
from plimsoll.levers.lora import linear
from plimsoll.levers.precision import dot, dot_rows
from plimsoll.levers.remat import keep, scan_blocks, unrolls
from plimsoll.levers.sharding import by_rows
from plimsoll.levers.weight_bits import opened, rows
from plimsoll.models.rotary import rotary_angles, rotate
from plimsoll.models.sizing import DecoderShape
from plimsoll.types import Compute

NORM_EPSILON = 1e-6
INIT_SCALE = 0.02
"""Standard deviation of every matrix; the two that write into the residual stream are divided by sqrt(2 layers)."""


class StackedBlock(Protocol):
    """What is stacked along the first axis of the weights: one layer, or a group of them."""

    def init(self, keys: Iterator[Array]) -> dict:
        """Returns the float32 weights of one block. Takes the next keys, one a matrix."""
        ...

    def __call__(
        self, weights: dict, x: Float[Array, "batch length width"], angles: Float[Array, "length half"]
    ) -> Float[Array, "batch length width"]: ...


def matrix_keys(key: Array) -> Iterator[Array]:
    """Returns an endless iterator of keys.

    The nth matrix that `init` makes takes the nth key: one added in the middle changes all after it.
    """
    return (jax.random.fold_in(key, number) for number in count())


def init_linear(keys: Iterator[Array], inner: int, cols: int, *, scale: float = INIT_SCALE) -> dict:
    """Returns a random kernel. Kernels are (in, out), which is the fast way round on a CPU."""
    return {"kernel": scale * jax.random.normal(next(keys), (inner, cols))}


def apply_linear(x: Float[Array, "... inner"], weights: dict, compute: Compute) -> Float[Array, "... cols"]:
    """Returns `x @ kernel` in the plan's precision."""
    return linear(x, weights["kernel"], precision=compute.precision, platform=compute.platform)


def rms_norm(x: Float[Array, "... width"], scale: Float[Array, " width"]) -> Float[Array, "... width"]:
    """Returns x / rms(x) * scale, computed in float32. Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467."""

    def normed(x: Array, scale: Array) -> Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON) * scale

    return in_float32(normed, x, scale)


def init_norm(width: int) -> dict:
    """Returns the learned scale of a norm."""
    return {"scale": jnp.ones((width,))}


def init_feed_forward(keys: Iterator[Array], shape: DecoderShape) -> dict:
    """Returns the weights of `feed_forward`."""
    width, inner = shape.width, shape.inner
    return {
        "feed_norm": init_norm(width),
        "gate": init_linear(keys, width, inner),
        "up": init_linear(keys, width, inner),
        "down": init_linear(keys, inner, width, scale=residual_scale(shape)),
    }


def feed_forward(weights: dict, x: Float[Array, "... width"], compute: Compute) -> Float[Array, "... width"]:
    """Returns x + SwiGLU(norm(x)): the second part of a block."""
    normed = rms_norm(x, weights["feed_norm"]["scale"])
    gate, up = (keep(apply_linear(normed, weights[name], compute)) for name in ("gate", "up"))
    return x + apply_linear(swiglu(gate, up), weights["down"], compute)


def residual_scale(shape: DecoderShape) -> float:
    """Returns the standard deviation of matrices that write into the residual stream."""
    return INIT_SCALE / (2 * shape.layers) ** 0.5


class Block:
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, shape: DecoderShape, compute: Compute) -> None:
        self.shape, self.compute = shape, compute

    def init(self, keys: Iterator[Array]) -> dict:
        width = self.shape.width
        return {
            "attention_norm": init_norm(width),
            "query": init_linear(keys, width, width),
            "key": init_linear(keys, width, width),
            "value": init_linear(keys, width, width),
            "out": init_linear(keys, width, width, scale=residual_scale(self.shape)),
        } | init_feed_forward(keys, self.shape)

    def __call__(
        self, weights: dict, x: Float[Array, "batch length width"], angles: Float[Array, "length half"]
    ) -> Float[Array, "batch length width"]:
        query, key, value = self.projected(weights, x, angles)
        window = self.shape.attention_window
        mixed = causal_attention(query, key, value, compute=self.compute, window=window)
        return self.after_attention(weights, x, mixed)

    def projected(self, weights: dict, x: Array, angles: Array) -> tuple[Array, Array, Array]:
        """Returns query, key and value of (batch, heads, length, width of a head), the first two rotated."""
        normed = rms_norm(x, weights["attention_norm"]["scale"])

        def split(name: str) -> Array:
            y = keep(apply_linear(normed, weights[name], self.compute))
            return y.reshape(*x.shape[:2], self.shape.heads, -1).swapaxes(1, 2)

        query, key, value = split("query"), split("key"), split("value")
        return rotate(query, angles), rotate(key, angles), value

    def after_attention(self, weights: dict, x: Array, mixed: Array) -> Array:
        """Returns the block's output for `x`, from the mixed values of its heads."""
        written = apply_linear(mixed.swapaxes(1, 2).reshape(x.shape), weights["out"], self.compute)
        return feed_forward(weights, x + keep(written), self.compute)


class Decoder:
    """The model as pure functions: `init` makes the parameters, `hidden` and `logits` use them.

    `stacked` is what the weights are a stack of, by default a `Block`.
    """

    def __init__(self, shape: DecoderShape, compute: Compute, stacked: StackedBlock | None = None) -> None:
        self.shape, self.compute = shape, compute
        self.stacked = Block(shape, compute) if stacked is None else stacked

    def init(self, key: Array) -> dict:
        """Returns float32 parameters; the blocks' leaves have a leading axis of blocks."""
        embedding_key, block_key, head_key = jax.random.split(key, 3)
        shape, block_keys = self.shape, jax.random.split(block_key, self.shape.blocks)
        params = {
            "embedding": INIT_SCALE * jax.random.normal(embedding_key, (shape.vocab, shape.width)),
            "blocks": jax.lax.map(lambda key: self.stacked.init(matrix_keys(key)), block_keys),
            "norm": jnp.ones((shape.width,)),
        }
        if not shape.tied:
            params["head"] = INIT_SCALE * jax.random.normal(head_key, (shape.width, shape.vocab))
        return params

    def hidden(self, params: dict, ids: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
        """Returns the final norm's output, from which `logits` are one matrix product away."""
        angles = rotary_angles(ids.shape[1], self.shape.head_width)
        x = scan_blocks(
            lambda x, layer: self.block(layer, x, angles),
            self.embedded(params, ids),
            params["blocks"],
            layers=self.shape.blocks,
            compute=self.compute,
        )
        return self.normed(params, x)

    def embedded(self, params: dict, ids: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
        """Returns the input of the first block."""
        return by_rows(stream(rows(params["embedding"], ids), self.compute))

    def block(
        self, params: dict, x: Float[Array, "batch length width"], angles: Float[Array, "length half"]
    ) -> Float[Array, "batch length width"]:
        """Applies one layer, with its own weights: no axis of layers."""
        return by_rows(self.stacked(params, x, angles))

    def normed(self, params: dict, x: Float[Array, "batch length width"]) -> Float[Array, "batch length width"]:
        """Applies the final norm to the output of the last block."""
        return rms_norm(x, params["norm"])

    @property
    def unrolls(self) -> bool:
        return unrolls(self.compute, layers=self.shape.blocks)

    def logits(self, params: dict, hidden: Float[Array, "rows width"]) -> Float[Array, "rows vocab"]:
        return self.head(hidden, self.head_weights(params))

    def head_weights(self, params: dict) -> Array:
        """Returns the factor of `head`: the token embedding where it is tied, (vocab, width), else (width, vocab)."""
        return opened(params["embedding" if self.shape.tied else "head"])

    def head(self, hidden: Float[Array, "rows width"], weights: Array) -> Float[Array, "rows vocab"]:
        """Returns float32 logits, whatever the type of the hidden states."""
        how = self.compute
        product = dot_rows if self.shape.tied else dot
        return product(hidden.astype(jnp.float32), weights, precision=how.precision, platform=how.platform)
