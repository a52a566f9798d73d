"""Readers of a history of items, given as vectors: a small trained transformer, or a published language model.

Both are causal, map (batch, length, width) to the same shape, and know no items. Histories are padded on the right,
where causal attention does not look.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float

from plimsoll.levers.remat import restacked, scan_blocks, unstacked
from plimsoll.levers.sharding import by_rows
from plimsoll.models.decoder import Decoder
from plimsoll.models.dropout import dropped
from plimsoll.models.pretrained.model import Pretrained
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.pretrained.weights import blank
from plimsoll.models.rotary import rotary_angles
from plimsoll.models.sizing import DecoderShape
from plimsoll.types import Compute


class Reader(Protocol):
    """Blocks and a norm. `frozen` says whether they are not trained."""

    frozen: bool

    def init(self, key: Array) -> dict: ...
    def hidden(
        self, params: dict, x: Float[Array, "batch length width"], keys: Array | None
    ) -> Float[Array, "batch length width"]:
        """Returns the output for each position. `keys` has one key per example if dropout is on."""
        ...

    def unstack(self, params: dict) -> dict:
        """See `types.Unstacks`."""
        ...

    def stack(self, gradient: dict) -> dict: ...


class SmallReader:
    """Llama-like decoder (models/decoder.py) without words. Dropout applies to what a whole block adds."""

    frozen = False

    def __init__(self, shape: DecoderShape, compute: Compute, *, dropout: float) -> None:
        self.decoder, self.compute, self.dropout = Decoder(shape, compute), compute, dropout

    def init(self, key: Array) -> dict:
        return {name: part for name, part in self.decoder.init(key).items() if name in ("blocks", "norm")}

    def hidden(self, params: dict, x: Array, keys: Array | None) -> Array:
        angles = rotary_angles(x.shape[1], self.decoder.shape.head_width)
        layers = self.decoder.shape.layers

        def one_block(x: Array, numbered: Any) -> Array:
            layer, number = numbered
            given = self.decoder.block(layer, x, angles)
            if keys is None or not self.dropout:
                return given
            return by_rows(x + dropped(given - x, keys, number + 1, share=self.dropout))

        blocks, numbers = params["blocks"], jnp.arange(layers)
        numbered = (
            [(block, numbers[at]) for at, block in enumerate(blocks)] if isinstance(blocks, list) else (blocks, numbers)
        )
        how = self.compute
        x = scan_blocks(one_block, by_rows(x), numbered, layers=layers, remat=how.remat, platform=how.platform)
        return self.decoder.normed(params, x)

    def unstack(self, params: dict) -> dict:
        if not self.decoder.unrolls:
            return params
        return params | {"blocks": unstacked(params["blocks"], self.decoder.shape.layers)}

    def stack(self, gradient: dict) -> dict:
        return gradient | {"blocks": restacked(gradient["blocks"])} if self.decoder.unrolls else gradient


class PublishedReader:
    """Llama or Gemma. It is `blank` until its weights are read; its word table is not needed."""

    def __init__(self, shape: PretrainedShape, compute: Compute, *, frozen: bool) -> None:
        self.shape, self.frozen = shape, frozen
        self.model = Pretrained(shape, compute, frozen=frozen)

    def init(self, key: Array) -> dict:
        del key
        return blank(self.shape)

    def hidden(self, params: dict, x: Array, keys: Array | None) -> Array:
        del keys
        return self.model.hidden(params, inputs_embeds=x)

    def unstack(self, params: dict) -> dict:
        return params

    def stack(self, gradient: dict) -> dict:
        return gradient
