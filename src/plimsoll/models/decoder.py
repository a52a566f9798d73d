"""A decoder-only language model in Llama's layout: pre-norm RMSNorm, rotary positions, SwiGLU, no biases.

Touvron et al. 2023, https://arxiv.org/abs/2302.13971. Flax NNX inside, pure functions over a pytree outside:
`Decoder.init` and `Decoder.hidden`. The blocks are stacked along their first axis and scanned, so that compile time,
and on a CPU rematerialisation, do not depend on the number of layers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
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


class Linear(nnx.Module):
    """`x @ kernel` in the plan's precision. Kernels are (in, out), which is the fast way round on a CPU."""

    def __init__(self, inner: int, cols: int, *, scale: float, compute: Compute, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(scale * jax.random.normal(rngs.params(), (inner, cols)))
        self.compute = compute

    def __call__(self, x: Float[Array, "... inner"]) -> Float[Array, "... cols"]:
        how = self.compute
        return linear(x, self.kernel.get_value(), precision=how.precision, platform=how.platform)


def rms_norm(x: Float[Array, "... width"], scale: Float[Array, " width"]) -> Float[Array, "... width"]:
    """Returns x / rms(x) * scale, computed in float32. Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467."""

    def normed(x: Array, scale: Array) -> Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON) * scale

    return in_float32(normed, x, scale)


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones((width,)))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        return rms_norm(x, self.scale[...])


class Block(nnx.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, shape: DecoderShape, compute: Compute, rngs: nnx.Rngs) -> None:
        d, f = shape.width, shape.inner
        residual = INIT_SCALE / (2 * shape.layers) ** 0.5
        options = {"compute": compute, "rngs": rngs}
        self.heads, self.window, self.compute = shape.heads, shape.attention_window, compute
        self.attention_norm, self.feed_norm = RMSNorm(d), RMSNorm(d)
        self.query, self.key, self.value = (Linear(d, d, scale=INIT_SCALE, **options) for _ in range(3))
        self.out = Linear(d, d, scale=residual, **options)
        self.gate, self.up = (Linear(d, f, scale=INIT_SCALE, **options) for _ in range(2))
        self.down = Linear(f, d, scale=residual, **options)

    def __call__(
        self, x: Float[Array, "batch length width"], angles: Float[Array, "length half"]
    ) -> Float[Array, "batch length width"]:
        query, key, value = self.projected(x, angles)
        return self.after_attention(x, causal_attention(query, key, value, compute=self.compute, window=self.window))

    def projected(self, x: Array, angles: Array) -> tuple[Array, Array, Array]:
        """Returns query, key and value of (batch, heads, length, width of a head), the first two rotated."""
        normed = self.attention_norm(x)

        def split(y: Array) -> Array:
            return keep(y).reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)

        query, key, value = split(self.query(normed)), split(self.key(normed)), split(self.value(normed))
        return rotate(query, angles), rotate(key, angles), value

    def after_attention(self, x: Array, mixed: Array) -> Array:
        """Returns the block's output for `x`, from the mixed values of its heads."""
        return fed(self, x + keep(self.out(mixed.swapaxes(1, 2).reshape(x.shape))))


def fed(block: Any, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
    """Returns x + SwiGLU(norm(x)), with the block's `feed_norm`, `gate`, `up` and `down`."""
    normed = block.feed_norm(x)
    return x + block.down(swiglu(keep(block.gate(normed)), keep(block.up(normed))))


class Decoder:
    """The model as pure functions: `init` makes the parameters, `hidden` and `logits` use them.

    `block` is the class of the stacked modules, with the signatures of `Block`.
    """

    def __init__(self, shape: DecoderShape, compute: Compute, block: Callable[..., nnx.Module] = Block) -> None:
        self.shape, self.compute, self._block_class = shape, compute, block
        abstract = nnx.eval_shape(lambda: block(shape, compute, nnx.Rngs(0)))
        self._block, _ = nnx.split(abstract)

    def init(self, key: Array) -> dict:
        """Returns float32 parameters; the blocks' leaves have a leading axis of layers."""
        embedding_key, block_key, head_key = jax.random.split(key, 3)
        shape = self.shape

        def one_block(key: Array) -> dict:
            return nnx.to_pure_dict(nnx.state(self._block_class(shape, self.compute, nnx.Rngs(params=key))))

        params = {
            "embedding": INIT_SCALE * jax.random.normal(embedding_key, (shape.vocab, shape.width)),
            "blocks": jax.lax.map(one_block, jax.random.split(block_key, shape.blocks)),
            "norm": jnp.ones((shape.width,)),
        }
        if not shape.tied:
            params["head"] = INIT_SCALE * jax.random.normal(head_key, (shape.width, shape.vocab))
        return params

    def hidden(self, params: dict, ids: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
        """Returns the final norm's output, from which `logits` are one dot away."""
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
        return by_rows(self.opened_block(params)(x, angles))

    def opened_block(self, params: dict) -> Any:
        """Returns the module of a layer's own weights."""
        return nnx.merge(self._block, params)

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
