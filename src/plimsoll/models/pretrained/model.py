"""Published decoders as pure functions over a pytree: token ids, or vectors in their place, to hidden states, logits.

The tree is that of `Decoder` (decoder.py), with the blocks stacked: kernels are (in, out), so that the same names serve
the levers. One decoder, a Llama (Touvron et al. 2023, https://arxiv.org/abs/2307.09288), with the differences that a
shape states: biases, norms of heads and norms after (shape.py, `Form`), windows, caps and scales (`PretrainedShape`).
Gemma Team 2024, https://arxiv.org/abs/2403.08295 and https://arxiv.org/abs/2408.00118; 2025,
https://arxiv.org/abs/2503.19786; Qwen Team 2025, https://arxiv.org/abs/2505.09388.

All layers are in one loop, those that see a window too: whether a layer does is an array beside its weights. A loop
over groups of a repeating pattern would need layers in whole groups, and a Gemma 3 has 26, 34 or 62 of a pattern of 6:
what is left over would be cut out of the stack, which copies the rest of it; and it would compile six bodies, all of
whose weights XLA may widen at once.

Kernels may be stored in any form of levers/frozen.py, and stacks in bfloat16 as their bits (uint16): of an array of
bits XLA for CPU takes one layer, of one in bfloat16 it widens all of them first. Padding stands on the right, where
causal attention does not look.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

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
from plimsoll.levers.remat import keep, rematerialised, scan_blocks
from plimsoll.levers.sharding import by_rows
from plimsoll.levers.weight_bits import opened, readable, rows
from plimsoll.models.pretrained.shape import PretrainedShape, Rotary
from plimsoll.models.rotary import rotate
from plimsoll.types import Compute

INIT_SCALE = 0.02


def norm_start(shape: PretrainedShape) -> float:
    """Returns the weight of a norm that changes no scale."""
    return 0.0 if shape.form.gemma else 1.0


class Places(NamedTuple):
    """Positions of a batch, as its layers read them."""

    angles: Float[Array, "#batch 1 length half"]
    """Radians of every position and pair."""
    window_angles: Float[Array, "#batch 1 length half"] | None
    """The same of layers that see a window, where it is not the same."""
    segments: Int[Array, "batch length"] | None
    """Number of the document of each position, where a row holds several."""


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
        scale = norm_start(shape)

        def random(number: int, *sides: int) -> Array:
            return INIT_SCALE * jax.random.normal(jax.random.fold_in(key, number), sides)

        blocks: dict[str, dict[str, Array]] = {}
        for number, ((ours, leaf), (_, sides)) in enumerate(shape.block_tensors().items()):
            of_all = (shape.layers, *reversed(sides))
            start = {"scale": scale, "bias": 0.0}.get(leaf)
            weights = random(number, *of_all) if start is None else jnp.full(of_all, start, jnp.float32)
            blocks.setdefault(ours, {})[leaf] = weights
        last = len(shape.block_tensors())
        params = {
            "embedding": random(last, shape.vocab, shape.width),
            "blocks": blocks,
            "norm": jnp.full((shape.width,), scale, jnp.float32),
        }
        if not shape.tied:
            params["head"] = random(last + 1, shape.width, shape.vocab)
        return params

    def hidden(
        self,
        params: dict,
        ids: Int[Array, "batch length"] | None = None,
        *,
        segments: Int[Array, "batch length"] | None = None,
        positions: Int[Array, "batch length"] | None = None,
        inputs_embeds: Float[Array, "batch length width"] | None = None,
    ) -> Float[Array, "batch length width"]:
        """Returns the final norm's output.

        Args:
            params: Parameters, as `init` or `weights.load` gives them.
            ids: Tokens.
            segments: int32 number of the document of each token, which grows along a row: attention stays within a
                document. None where each row is one.
            positions: int32 position of each token in its document; None counts from the beginning of the row.
            inputs_embeds: Input of the first block as it is, instead of `ids`, as in transformers 5: a Gemma scales
                what it looks up, and not what it is given.
        """
        given = self.embedded(params, ids) if inputs_embeds is None else by_rows(inputs_embeds)
        x = stream(given, self.compute)
        places = self.places(x.shape[1], segments=segments, positions=positions)
        how, layers = self.compute, self.shape.layers

        def apply(x: Array, layer: Any) -> Array:
            weights, of_layer = layer
            return self.block(weights, x, places, windowed=any(windowed) if of_layer is None else of_layer)

        windowed = self.shape.windowed
        numbered = (params["blocks"], np.array(windowed) if len(set(windowed)) > 1 else None)
        if self.frozen:  # always scanned: one after another, XLA would have all layers widened at once
            cut, layer_of = layers_of(numbered)
            step = rematerialised(lambda x, part: apply(x, layer_of(part)), how.remat, platform=how.platform)
            x, _ = jax.lax.scan(lambda x, part: (step(x, part), None), x, cut)
        else:
            x = scan_blocks(apply, x, numbered, layers=layers, compute=how)
        return self.normed(params["norm"], x)

    def logits(self, params: dict, hidden: Float[Array, "rows width"]) -> Float[Array, "rows vocab"]:
        return self.head(hidden, self.head_weights(params))

    def head_weights(self, params: dict) -> Any:
        """Returns the factor of `head`: the token embedding where it is tied, (vocab, width), else (width, vocab).

        A packed embedding is (width, vocab), too. One that is learned is opened; a frozen one stays in the form in
        which it is stored.
        """
        weights = params["embedding" if self.shape.tied else "head"]
        return weights if self.frozen else readable(opened(weights))

    def head(self, hidden: Float[Array, "rows width"], weights: Any) -> Float[Array, "rows vocab"]:
        """Returns float32 logits, capped where the shape says so, whatever the type of the hidden states."""
        how, hidden = self.compute, hidden.astype(jnp.float32)
        if not self.shape.tied or isinstance(weights, Packed):
            logits = self._times(hidden, weights, gathered=False)
        else:
            product = partial(frozen_dot_rows, gathered=False) if self.frozen else dot_rows
            logits = product(hidden, weights, precision=how.precision, platform=how.platform)
        cap = self.shape.logit_cap
        return cap * jnp.tanh(logits / cap) if cap else logits

    def embedded(self, params: dict, ids: Any) -> Float[Array, "batch length width"]:
        """Returns the input of the first block."""
        scale = self.shape.width**0.5 if self.shape.form.gemma else 1.0
        table = params["embedding"]
        looked_up = columns(table, ids) if isinstance(table, Packed) else readable(rows(table, ids))
        return by_rows(looked_up.astype(jnp.float32) * scale)

    def places(
        self,
        length: int,
        *,
        segments: Int[Array, "batch length"] | None = None,
        positions: Int[Array, "batch length"] | None = None,
    ) -> Places:
        """Returns what layers read of the positions of so many tokens. The arguments are those of `hidden`."""
        at = jnp.arange(length, dtype=jnp.float32)[None] if positions is None else positions.astype(jnp.float32)

        def angles(rotary: Rotary) -> Array:
            return at[:, None, :, None] * jnp.asarray(rotary.frequencies(self.shape.head_width))

        local = self.shape.window_rotary
        return Places(angles(self.shape.rotary), None if local is None else angles(local), segments)

    def block(
        self, layer: dict, x: Float[Array, "batch length width"], places: Places, *, windowed: Bool[Array, ""] | bool
    ) -> Float[Array, "batch length width"]:
        """Applies one layer, with its own weights: no axis of layers.

        Args:
            layer: Weights of the layer.
            x: Its input.
            places: Positions, of `places`.
            windowed: Whether it sees a window alone: an array where layers differ.
        """
        known = isinstance(windowed, bool)  # it must not become an array: attention would be compiled both ways

        def attended(layer: dict, x: Array, places: Places, of_layer: Any) -> Array:
            return self.attended(layer, x, places, windowed=windowed if known else of_layer)

        if self.compute.remat in ("block", "offload"):
            attended = jax.checkpoint(attended)
        x = attended(layer, x, places, None if known else windowed)
        return by_rows(in_chunks(self.fed, layer, x, chunk=self.compute.lever("mlp_chunk", 0)))

    def attended(
        self, layer: dict, x: Float[Array, "batch length width"], places: Places, *, windowed: Bool[Array, ""] | bool
    ) -> Float[Array, "batch length width"]:
        """Returns x + attention(norm(x)): the first part of a layer. The arguments are those of `block`."""
        shape = self.shape
        normed = self.normed(layer["attention_norm"]["scale"], x)
        angles = places.angles
        if places.window_angles is not None:
            angles = jnp.where(windowed, places.window_angles, angles)

        def split(name: str) -> Array:
            return keep(self._times(normed, layer[name])).reshape(*x.shape[:2], -1, shape.head_width).swapaxes(1, 2)

        def turned(name: str) -> Array:
            y = split(name)
            norm = layer.get(f"{name}_norm")
            return rotate(y if norm is None else self.normed(norm["scale"], y), angles)

        mixed = causal_attention(
            turned("query"),
            turned("key"),
            split("value"),
            compute=self.compute,
            window=shape.window,
            windowed=windowed,
            segments=places.segments,
            scale=shape.score_scale,
            cap=shape.score_cap,
        )
        mixed = mixed.swapaxes(1, 2).reshape(*x.shape[:2], shape.heads * shape.head_width)
        return x + self._after(layer, "attention_after_norm", keep(self._times(mixed, layer["out"])))

    def fed(
        self, layer: dict, x: Float[Array, "batch length width"], first: Any = 0
    ) -> Float[Array, "batch length width"]:
        """Returns x + feed-forward(norm(x)): the second part of a layer, which knows no other position.

        Args:
            layer: Weights of the layer.
            x: Its input.
            first: Position in the sequence of the first row of `x`, which dropout of adapters depends on.
        """
        layer = from_position(layer, first)
        normed = self.normed(layer["feed_norm"]["scale"], x)
        gate, up = (keep(self._times(normed, layer[name])) for name in ("gate", "up"))
        gated = _geglu(gate, up, exact=self.shape.exact_gelu) if self.shape.form.gemma else swiglu(gate, up)
        return x + self._after(layer, "feed_after_norm", self._times(gated, layer["down"]))

    def normed(self, scale: Float[Array, " width"], x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        """Returns x / rms(x), times the weight, or in a Gemma 1 + weight."""
        scale = scale + 1.0 if self.shape.form.gemma else scale

        def times_scale(x: Array, scale: Array) -> Array:
            return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.shape.norm_epsilon) * scale

        return in_float32(times_scale, x, scale)

    def _after(self, layer: dict, name: str, x: Array) -> Array:
        return self.normed(layer[name]["scale"], x) if name in layer else x

    def _times(self, x: Array, weights: Any, *, gathered: bool = True) -> Array:
        """Returns the product with a kernel, or with a kernel and the bias beside it."""
        how: dict[str, Any] = {"precision": self.compute.precision, "platform": self.compute.platform}
        kernel: Any = weights["kernel"] if isinstance(weights, dict) else weights
        if self.frozen and not isinstance(kernel, Adapted):
            y = frozen_dot(x, kernel, gathered=gathered, **how)
        else:
            y = linear(x, kernel, **how)
        bias = weights.get("bias") if isinstance(weights, dict) else None
        return y if bias is None else y + bias.astype(y.dtype)


def _geglu(gate: Array, up: Array, *, exact: bool) -> Array:
    """Returns gelu(gate) * up in the type of both: with GELU itself, or its approximation by tanh."""
    return in_float32(lambda gate, up: jax.nn.gelu(gate, approximate=not exact) * up, gate, up)
