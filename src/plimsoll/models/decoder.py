"""A decoder-only language model: computes hidden states and logits from token ids or embeddings.

One decoder serves new and published models. By default it is a Llama (Touvron et al. 2023,
https://arxiv.org/abs/2302.13971): pre-norm RMSNorm, rotary positions, SwiGLU. A shape (shape.py) may add biases, norms
of queries and keys, norms after attention and feed-forward, sliding windows, caps and scales, as in Gemma (2024,
https://arxiv.org/abs/2403.08295 and https://arxiv.org/abs/2408.00118; 2025, https://arxiv.org/abs/2503.19786) and Qwen
(2025, https://arxiv.org/abs/2505.09388).

All functions are pure: `Decoder.init` returns parameters as dicts of arrays, `Decoder.hidden` reads them. Kernels are
(in, out), which is the faster layout on a CPU. Padding must be on the right, where causal attention ignores it.

The weights of all blocks are stacked along a first axis. The blocks are scanned, unless `levers.remat.unrolls`, so that
compile time does not depend on the number of layers. Layers with and without a sliding window share one scan, which
reads a boolean for each layer. A Gemma 3 repeats a pattern of 6 layers, but has 26, 34 or 62: a scan over patterns
would compile six bodies, and copy the remaining layers out of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from plimsoll.levers.activations import in_float32, stream, swiglu
from plimsoll.levers.attention import causal_attention
from plimsoll.levers.frozen import Packed, columns, frozen_dot, frozen_dot_rows, layers_of
from plimsoll.levers.lora import Adapted, from_position, linear
from plimsoll.levers.mlp_chunk import in_chunks
from plimsoll.levers.precision import dot_rows
from plimsoll.levers.remat import beside, keep, scan_blocks, unrolls
from plimsoll.levers.sharding import by_rows
from plimsoll.levers.weight_bits import opened, readable, rows
from plimsoll.models.rotary import rotary_angles, rotate
from plimsoll.models.shape import DecoderShape
from plimsoll.types import Compute

INIT_SCALE = 0.02
"""Standard deviation of initial weight matrices; in `INTO_STREAM` it is divided by sqrt(2 * number of layers)."""
INTO_STREAM = ("out", "down")
"""Names of kernels whose product is added to the residual stream."""
FEED_FORWARD = ("feed_norm", "feed_after_norm", "gate", "up", "down")
"""Names of the weights of a layer's feed-forward part."""

Stream = Float[Array, "batch length width"]
Integers = Int[Array, "batch length"]


class Places(NamedTuple):
    """Positions of a batch, as a layer reads them."""

    angles: Float[Array, "... length half"]
    """Rotary angle of every position and pair of columns, in radians."""
    window_angles: Float[Array, "... length half"] | None = None
    """Rotary angles of layers with a sliding window; None if these use `angles`."""
    segments: Integers | None = None
    """Document number of each position; None if each row is one document."""
    windowed: Bool[Array, ""] | None = None
    """Whether the sliding window applies to the layer; None if all layers are alike."""


class StackedBlock(Protocol):
    """One of the blocks whose weights are stacked: a layer, or a group of layers."""

    layers: int
    """Number of layers in a block."""

    def init(self, keys: Iterator[Array]) -> dict:
        """Returns initial float32 weights of one block. Each matrix takes the next PRNG key."""
        ...

    def __call__(self, weights: dict, x: Stream, places: Places) -> Stream: ...


def matrix_keys(key: Array) -> Iterator[Array]:
    """Returns an endless iterator of PRNG keys.

    The nth matrix of `init` takes the nth key, so inserting a matrix changes the values of all later ones.
    """
    return (jax.random.fold_in(key, number) for number in count())


def init_linear(keys: Iterator[Array], inner: int, cols: int, *, scale: float = INIT_SCALE) -> dict:
    """Returns a kernel of shape (inner, cols), drawn from a normal distribution of standard deviation `scale`."""
    return {"kernel": scale * jax.random.normal(next(keys), (inner, cols))}


def product(
    x: Float[Array, "... inner"], weights: Mapping[str, Any], compute: Compute, *, frozen: bool = False
) -> Float[Array, "... cols"]:
    """Returns `x @ kernel` in the precision of `compute`, plus the bias, if there is one.

    A `frozen` kernel has no gradient, but its adapter (levers/lora.py) has.
    """
    kernel = weights["kernel"]
    times: Callable[..., Array] = frozen_dot if frozen and not isinstance(kernel, Adapted) else linear
    y = times(x, kernel, compute)
    if "bias" not in weights:
        return y
    return y + weights["bias"].astype(y.dtype)


def rms_norm(x: Float[Array, "... width"], scale: Float[Array, " width"], shape: DecoderShape) -> Array:
    """Returns x / rms(x) * scale, for Gemma models x / rms(x) * (1 + scale), computed in float32.

    Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.
    """
    factor = scale + 1.0 if shape.form.gemma else scale

    def normed(x: Array, factor: Array) -> Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + shape.norm_epsilon) * factor

    return in_float32(normed, x, factor)


def geglu(gate: Array, up: Array, *, exact: bool) -> Array:
    """Returns gelu(gate) * up in the inputs' dtype, with the exact GELU or its approximation by tanh."""
    return in_float32(lambda gate, up: jax.nn.gelu(gate, approximate=not exact) * up, gate, up)


class Layer:
    """Base class of layers: initial weights for a shape, and a feed-forward part."""

    layers = 1

    def __init__(self, shape: DecoderShape, compute: Compute, *, frozen: bool = False) -> None:
        self.shape = shape
        self.compute = compute
        self.product = partial(product, compute=compute, frozen=frozen)
        self.normed = partial(rms_norm, shape=shape)

    def init_weights(self, keys: Iterator[Array], names: tuple[str, ...] = ()) -> dict:
        """Returns initial weights: random kernels, neutral norms, and zero biases; all of them, or those in `names`."""
        weights: dict[str, dict[str, Array]] = {}
        for (name, leaf), (_, sides) in self.shape.block_tensors().items():
            if names and name not in names:
                continue
            parts = weights.setdefault(name, {})
            if leaf == "kernel":
                scale = INIT_SCALE / (2 * self.shape.layers) ** 0.5 if name in INTO_STREAM else INIT_SCALE
                parts |= init_linear(keys, *reversed(sides), scale=scale)
            else:
                start = self.shape.form.norm_start if leaf == "scale" else 0.0
                parts[leaf] = jnp.full(sides, start, jnp.float32)
        return weights

    def fed(self, weights: dict, x: Stream) -> Stream:
        """Returns x + feed-forward(norm(x)): the second part of a layer, which computes each position separately."""
        return in_chunks(self._fed_rows, weights, x, chunk=self.compute.lever("mlp_chunk", 0))

    def _fed_rows(self, weights: dict, x: Stream, first: Any) -> Stream:
        """Returns `fed` of a chunk of positions. `first` is the index of the first, for dropout of adapters."""
        weights = from_position(weights, first)
        normed = self.normed(x, weights["feed_norm"]["scale"])
        gate, up = (keep(self.product(normed, weights[name])) for name in ("gate", "up"))
        gated = geglu(gate, up, exact=self.shape.exact_gelu) if self.shape.form.gemma else swiglu(gate, up)
        return x + self.after(weights, "feed_after_norm", self.product(gated, weights["down"]))

    def after(self, weights: dict, name: str, x: Array) -> Array:
        """Applies the norm `name` if the layer has it; otherwise returns `x`."""
        return self.normed(x, weights[name]["scale"]) if name in weights else x


class Block(Layer):
    """A transformer layer: x + attention(norm(x)), then x + feed-forward(norm(x)).

    With `in_halves`, the backward pass of a rematerialised layer recomputes the two halves one after the other, and
    attention twice. That saves memory if one layer's activations are a step's largest arrays, as in published models.
    In small models the logits are larger.
    """

    def __init__(self, shape: DecoderShape, compute: Compute, *, frozen: bool = False, in_halves: bool = False) -> None:
        super().__init__(shape, compute, frozen=frozen)
        if in_halves and compute.remat in ("block", "offload"):
            self.attended = jax.checkpoint(self.attended)

    def init(self, keys: Iterator[Array]) -> dict:
        return self.init_weights(keys)

    def __call__(self, weights: dict, x: Stream, places: Places) -> Stream:
        return self.fed(weights, self.attended(weights, x, places))

    def attended(self, weights: dict, x: Stream, places: Places) -> Stream:
        """Returns x + attention(norm(x)): the first part of a layer."""
        shape = self.shape
        query, key, value = self.projected(weights, x, places)
        mixed = causal_attention(
            query,
            key,
            value,
            compute=self.compute,
            window=shape.window,
            windowed=True if places.windowed is None else places.windowed,
            segments=places.segments,
            scale=shape.score_scale,
            cap=shape.score_cap,
        )
        return self.written(weights, x, mixed)

    def projected(self, weights: dict, x: Stream, places: Places) -> tuple[Array, Array, Array]:
        """Returns query, key and value, (batch, heads, length, head width). Query and key are rotated."""
        normed = self.normed(x, weights["attention_norm"]["scale"])
        angles = places.angles
        if places.windowed is not None and places.window_angles is not None:
            angles = jnp.where(places.windowed, places.window_angles, angles)

        def split(name: str) -> Array:
            y = keep(self.product(normed, weights[name]))
            return y.reshape(*x.shape[:2], -1, self.shape.head_width).swapaxes(1, 2)

        def rotated(name: str) -> Array:
            return rotate(self.after(weights, f"{name}_norm", split(name)), angles)

        return rotated("query"), rotated("key"), split("value")

    def written(self, weights: dict, x: Stream, mixed: Float[Array, "batch heads length head"]) -> Stream:
        """Returns x + the output projection of `mixed`, the attention output of all heads."""
        merged = mixed.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        return x + self.after(weights, "attention_after_norm", keep(self.product(merged, weights["out"])))


class Decoder:
    """The model of a shape as pure functions: `init` makes the parameters, `hidden` and `logits` use them.

    The weights of all `stacked` blocks, by default of class `Block`, are stacked. In a `frozen` model only adapters
    (levers/lora.py) and `inputs_embeds` have gradients, and kernels may be stored in any form of levers/frozen.py. The
    bits of bfloat16 stacks may be stored as uint16: then XLA for CPU slices one layer without converting all layers.
    """

    def __init__(
        self,
        shape: DecoderShape,
        compute: Compute,
        stacked: StackedBlock | None = None,
        *,
        frozen: bool = False,
        in_halves: bool = False,
    ) -> None:
        self.shape = shape
        self.compute = compute
        self.frozen = frozen
        self.stacked = stacked or Block(shape, compute, frozen=frozen, in_halves=in_halves)
        self.blocks = shape.layers // self.stacked.layers
        # Frozen layers are always scanned: if they were unrolled, XLA would hold all of them decoded at once.
        self.unrolls = not frozen and unrolls(compute, layers=self.blocks)

    def init(self, key: Array) -> dict:
        """Returns initial float32 parameters. The leaves in `blocks` have a leading axis of blocks."""
        shape = self.shape
        embedding_key, block_key, head_key = jax.random.split(key, 3)
        block_keys = jax.random.split(block_key, self.blocks)
        params = {
            "embedding": INIT_SCALE * jax.random.normal(embedding_key, (shape.vocab, shape.width)),
            "blocks": jax.lax.map(lambda key: self.stacked.init(matrix_keys(key)), block_keys),
            "norm": jnp.full((shape.width,), shape.form.norm_start, jnp.float32),
        }
        if not shape.tied:
            params["head"] = INIT_SCALE * jax.random.normal(head_key, (shape.width, shape.vocab))
        return params

    def hidden(
        self,
        params: dict,
        ids: Integers | None = None,
        *,
        segments: Integers | None = None,
        positions: Integers | None = None,
        inputs_embeds: Stream | None = None,
    ) -> Stream:
        """Returns the final norm's output, the argument of `logits`.

        Args:
            params: Parameters from `init` or `weights.load`.
            ids: Tokens.
            segments: int32 document number of each token: attention stays within a document. None if each row is one.
            positions: int32 position of each token in its document; None counts from the beginning of the row.
            inputs_embeds: Input of the first block, instead of `ids`. A Gemma scales its embeddings, but not this
                input, as in transformers 5.
        """
        x = self.embedded(params, ids) if inputs_embeds is None else by_rows(stream(inputs_embeds, self.compute))
        places = self.places(x.shape[1], segments=segments, positions=positions)

        def apply(x: Stream, layer: Any) -> Stream:
            weights, windowed = layer
            return self.block(weights, x, places._replace(windowed=windowed))

        layers = beside(params["blocks"], np.array(self.shape.windowed) if self.shape.windowed else None)
        if self.frozen:
            layers, layer_of = layers_of(layers)
            x = scan_blocks(lambda x, part: apply(x, layer_of(part)), x, layers, unrolled=False, compute=self.compute)
        else:
            x = scan_blocks(apply, x, layers, unrolled=self.unrolls, compute=self.compute)
        return self.normed(params, x)

    def embedded(self, params: dict, ids: Any) -> Stream:
        """Returns the input of the first block."""
        table = params["embedding"]
        x = columns(table, ids) if isinstance(table, Packed) else readable(rows(table, ids))
        if self.shape.form.gemma:
            x = x.astype(jnp.float32) * self.shape.width**0.5
        return by_rows(stream(x, self.compute))

    def places(
        self,
        length: int,
        *,
        segments: Integers | None = None,
        positions: Integers | None = None,
    ) -> Places:
        """Returns the `Places` of `length` tokens. `segments` and `positions` are as in `hidden`."""
        shape = self.shape
        numbers = jnp.arange(length) if positions is None else positions[:, None]
        angles = rotary_angles(numbers, shape.head_width, shape.rotary)
        if shape.window_rotary is None:
            return Places(angles, None, segments)
        return Places(angles, rotary_angles(numbers, shape.head_width, shape.window_rotary), segments)

    def block(self, weights: dict, x: Stream, places: Places) -> Stream:
        """Applies one block. `weights` are those of this block alone."""
        return by_rows(self.stacked(weights, x, places))

    def normed(self, params: dict, x: Stream) -> Stream:
        """Applies the final norm to the output of the last block."""
        return rms_norm(x, params["norm"], self.shape)

    def logits(self, params: dict, hidden: Float[Array, "rows width"]) -> Float[Array, "rows vocab"]:
        return self.head(hidden, self.head_weights(params))

    def head_weights(self, params: dict) -> Any:
        """Returns the output layer's weights: (vocab, width) if they are the token embedding, else (width, vocab).

        A quantised token embedding (`Packed`) is (width, vocab), too. Frozen weights are returned as stored.
        """
        weights = params["embedding" if self.shape.tied else "head"]
        return weights if self.frozen else readable(opened(weights))

    def head(self, hidden: Float[Array, "rows width"], weights: Any) -> Float[Array, "rows vocab"]:
        """Returns float32 logits for hidden states of any float type, capped if the shape has a cap."""
        by_columns = not self.shape.tied or isinstance(weights, Packed)
        times: Callable[..., Array] = linear if by_columns else dot_rows
        if self.frozen:
            times = partial(frozen_dot if by_columns else frozen_dot_rows, gathered=False)
        logits = times(hidden.astype(jnp.float32), weights, self.compute)
        cap = self.shape.logit_cap
        return cap * jnp.tanh(logits / cap) if cap else logits
