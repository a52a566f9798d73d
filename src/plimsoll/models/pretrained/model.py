"""A Llama or a Gemma 1 as pure functions over a pytree: token ids, or vectors in their place, to hidden states, logits.

The tree is that of `Decoder` (decoder.py), with the blocks stacked: kernels are (in, out), so that the same names serve
the levers. Touvron et al. 2023, https://arxiv.org/abs/2307.09288; Gemma Team 2024, https://arxiv.org/abs/2403.08295:
its norms multiply by 1 + weight, its feed-forward part has GELU for SiLU, its embedding is scaled by sqrt(width).

Kernels may be stored in any form of levers/frozen.py, and what is in bfloat16 as its bits (uint16): of an array of bits
XLA for CPU takes one layer, of one in bfloat16 it widens all of them first. Padding stands on the right, where causal
attention does not look.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plimsoll.levers.activations import in_float32, stream, swiglu
from plimsoll.levers.attention import causal_attention
from plimsoll.levers.frozen import frozen_dot, frozen_dot_rows, layers_of
from plimsoll.levers.lora import Adapted, from_position, linear
from plimsoll.levers.mlp_chunk import in_chunks
from plimsoll.levers.precision import dot_rows
from plimsoll.levers.remat import keep, rematerialised, scan_blocks
from plimsoll.levers.sharding import by_rows
from plimsoll.levers.weight_bits import opened, readable, rows
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.rotary import rotate
from plimsoll.types import Compute

INIT_SCALE = 0.02

KERNELS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Name in our tree to the published name, within a layer."""
NORMS = {"attention_norm": "input_layernorm", "feed_norm": "post_attention_layernorm"}


def norm_start(shape: PretrainedShape) -> float:
    """Returns the weight of a norm that changes no scale."""
    return 0.0 if shape.architecture == "gemma" else 1.0


class Pretrained:
    """The model of a shape.

    `frozen`: no weight is learned, and none takes a gradient. An adapter beside a kernel (levers/lora.py) still does,
    and so do `inputs_embeds`.
    """

    def __init__(self, shape: PretrainedShape, compute: Compute, *, frozen: bool = True) -> None:
        self.shape, self.compute, self.frozen = shape, compute, frozen

    def init(self, key: Array) -> dict:
        """Returns random float32 parameters, in the tree that the published ones are read into."""
        shape = self.shape
        published = shape.tensors()

        def random(number: int, *lead: int, rows: int, cols: int) -> Array:
            return INIT_SCALE * jax.random.normal(jax.random.fold_in(key, number), (*lead, rows, cols))

        scale = norm_start(shape)
        blocks: dict[str, dict[str, Array]] = {}
        for number, (ours, name) in enumerate(KERNELS.items()):
            cols, rows = published[f"model.layers.0.{name}.weight"]
            blocks[ours] = {"kernel": random(number, shape.layers, rows=rows, cols=cols)}
        for ours in NORMS:
            blocks[ours] = {"scale": jnp.full((shape.layers, shape.width), scale, jnp.float32)}
        params = {
            "embedding": random(len(KERNELS), rows=shape.vocab, cols=shape.width),
            "blocks": blocks,
            "norm": jnp.full((shape.width,), scale, jnp.float32),
        }
        if not shape.tied:
            params["head"] = random(len(KERNELS) + 1, rows=shape.width, cols=shape.vocab)
        return params

    def hidden(
        self,
        params: dict,
        ids: Int[Array, "batch length"] | None = None,
        *,
        inputs_embeds: Float[Array, "batch length width"] | None = None,
    ) -> Float[Array, "batch length width"]:
        """Returns the final norm's output.

        `inputs_embeds` are the first block's input as they are, as in transformers 5: a Gemma scales what it looks up,
        and not what it is given.
        """
        x = self.embedded(params, ids) if inputs_embeds is None else by_rows(inputs_embeds)
        angles = self.angles(x.shape[1])
        apply = lambda x, layer: self.block(layer, x, angles)  # noqa: E731
        how = self.compute
        if self.frozen:  # always scanned: one after another, XLA would have all layers widened at once
            layers, layer_of = layers_of(params["blocks"])
            step = rematerialised(lambda x, numbered: apply(x, layer_of(numbered)), how.remat)
            x, _ = jax.lax.scan(lambda x, numbered: (step(x, numbered), None), stream(x, how), layers)
        else:
            blocks, layers = params["blocks"], self.shape.layers
            x = scan_blocks(apply, stream(x, how), blocks, layers=layers, compute=how)
        return self.normed(params["norm"], x)

    def logits(self, params: dict, hidden: Float[Array, "rows width"]) -> Float[Array, "rows vocab"]:
        return self.head(hidden, self.head_weights(params))

    def head_weights(self, params: dict) -> Any:
        """Returns the factor of `head`: the token embedding where it is tied, (vocab, width), else (width, vocab).

        One that is learned is opened; a frozen one stays in the form in which it is stored.
        """
        weights = params["embedding" if self.shape.tied else "head"]
        return weights if self.frozen else readable(opened(weights))

    def head(self, hidden: Float[Array, "rows width"], weights: Any) -> Float[Array, "rows vocab"]:
        """Returns float32 logits, whatever the type of the hidden states."""
        hidden = hidden.astype(jnp.float32)
        if not self.shape.tied:
            return self._times(hidden, weights)
        product = frozen_dot_rows if self.frozen else dot_rows
        return product(hidden, weights, precision=self.compute.precision, platform=self.compute.platform)

    def embedded(self, params: dict, ids: Any) -> Float[Array, "batch length width"]:
        """Returns the input of the first block."""
        scale = self.shape.width**0.5 if self.shape.architecture == "gemma" else 1.0
        return by_rows(readable(rows(params["embedding"], ids)).astype(jnp.float32) * scale)

    def angles(self, length: int) -> Float[Array, "length half"]:
        """Returns the angle of every position and pair, in radians."""
        frequencies = jnp.asarray(self.shape.rotary.frequencies(self.shape.head_width))
        return jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies

    def block(
        self, layer: dict, x: Float[Array, "batch length width"], angles: Float[Array, "length half"]
    ) -> Float[Array, "batch length width"]:
        """Applies one layer, with its own weights: no axis of layers."""
        attended = self.attended
        if self.compute.remat in ("block", "offload"):
            attended = jax.checkpoint(attended)
        x = attended(layer, x, angles)
        return by_rows(in_chunks(self.fed, layer, x, chunk=self.compute.lever("mlp_chunk", 0)))

    def attended(self, layer: dict, x: Array, angles: Array) -> Array:
        """Returns x + attention(norm(x))."""
        shape = self.shape
        normed = self.normed(layer["attention_norm"]["scale"], x)

        def split(name: str) -> Array:
            y = keep(self._times(normed, layer[name]["kernel"]))
            return y.reshape(*x.shape[:2], -1, shape.head_width).swapaxes(1, 2)

        query, key, value = rotate(split("query"), angles), rotate(split("key"), angles), split("value")
        mixed = causal_attention(query, key, value, compute=self.compute)
        mixed = mixed.swapaxes(1, 2).reshape(*x.shape[:2], shape.heads * shape.head_width)
        return x + keep(self._times(mixed, layer["out"]["kernel"]))

    def fed(self, layer: dict, x: Array, first: Any = 0) -> Array:
        """Returns x + feed-forward(norm(x)), of each position by itself; `first` is that of the first of them."""
        layer = from_position(layer, first)
        normed = self.normed(layer["feed_norm"]["scale"], x)
        gate, up = (keep(self._times(normed, layer[name]["kernel"])) for name in ("gate", "up"))
        gated = swiglu(gate, up) if self.shape.architecture == "llama" else in_float32(_geglu, gate, up)
        return x + self._times(gated, layer["down"]["kernel"])

    def normed(self, scale: Float[Array, " width"], x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        """Returns x / rms(x), times the weight, or in a Gemma 1 + weight."""
        scale = scale + 1.0 if self.shape.architecture == "gemma" else scale
        epsilon = self.shape.norm_epsilon
        return in_float32(
            lambda x, scale: x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale, x, scale
        )

    def _times(self, x: Array, kernel: Any) -> Array:
        how: dict[str, Any] = {"precision": self.compute.precision, "platform": self.compute.platform}
        if self.frozen and not isinstance(kernel, Adapted):
            return frozen_dot(x, kernel, **how)
        return linear(x, kernel, **how)


def _geglu(gate: Array, up: Array) -> Array:
    return jax.nn.gelu(gate, approximate=True) * up
