"""Readers of a history of item vectors: a small trained transformer, or a published language model.

A `Side` is a small transformer beside a published model. All are causal, and contain no item table. Readers map (batch,
length, width) to the same shape. Histories are padded on the right, where causal attention does not look.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from plimsoll.levers.activations import stream
from plimsoll.levers.precision import dot
from plimsoll.levers.remat import beside, scan_blocks
from plimsoll.levers.sharding import by_rows
from plimsoll.models.decoder import Decoder
from plimsoll.models.dropout import dropped
from plimsoll.models.pretrained.weights import blank, load_over
from plimsoll.models.shape import DecoderShape
from plimsoll.types import Compute, Params

Vectors = Float[Array, "batch length width"]


class SmallReader:
    """Llama-like decoder (models/decoder.py), without token embeddings. Dropout applies to each block's residual."""

    frozen = False

    def __init__(self, shape: DecoderShape, compute: Compute, *, dropout: float) -> None:
        self.decoder, self.compute, self.dropout = Decoder(shape, compute), compute, dropout
        self.unrolls = self.decoder.unrolls

    def init(self, key: Array) -> dict:
        return {name: part for name, part in self.decoder.init(key).items() if name in ("blocks", "norm")}

    def hidden(self, params: dict, x: Vectors, keys: Array | None) -> Vectors:
        """Returns the output for each position. `keys` has a PRNG key per example; None turns dropout off."""
        places = self.decoder.places(x.shape[1])

        def one_block(x: Array, numbered: Any) -> Array:
            layer, number = numbered
            after = self.decoder.block(layer, x, places)
            if keys is None or not self.dropout:
                return after
            return by_rows(x + dropped(after - x, keys, number + 1, share=self.dropout))

        numbered = beside(params["blocks"], jnp.arange(self.decoder.blocks))
        x = by_rows(stream(x, self.compute))
        x = scan_blocks(one_block, x, numbered, unrolled=self.unrolls, compute=self.compute)
        return self.decoder.normed(params, x).astype(jnp.float32)


class PublishedReader:
    """Published language model without token embeddings. `init` returns placeholders: weights are loaded."""

    unrolls = False

    def __init__(self, shape: DecoderShape, compute: Compute, *, frozen: bool) -> None:
        self.shape, self.frozen = shape, frozen
        self.decoder = Decoder(shape, compute, frozen=frozen, in_halves=True)

    def init(self, key: Array) -> dict:
        del key
        return blank(self.shape)

    def hidden(self, params: dict, x: Vectors, keys: Array | None) -> Vectors:
        del keys
        return self.decoder.hidden(params, inputs_embeds=x)


class Side:
    """Small transformer that is trained beside a frozen language model.

    Its input is the items' table rows plus a projection of the language model's output. The projection begins as zero:
    at the start this is a `SmallReader` without a language model. A frozen model alone loses the items: its layers add
    vectors many times as long as its input, and no trained weight can change that. Sung et al. 2022 (ladder
    side-tuning, https://arxiv.org/abs/2206.06522).
    """

    def __init__(self, shape: DecoderShape, compute: Compute, *, width: int, dropout: float) -> None:
        self.reader = SmallReader(shape, compute, dropout=dropout)
        self.compute, self.width, self.dropout = compute, width, dropout

    def init(self, key: Array) -> dict:
        zeros = jnp.zeros((self.width, self.reader.decoder.shape.width), jnp.float32)
        return self.reader.init(key) | {"said": {"kernel": zeros}}

    def entering(self, x: Vectors, keys: Array | None) -> Vectors:
        """Returns the language model's input after dropout. Without this dropout, training memorises histories."""
        return dropped(x, keys, self.reader.decoder.shape.layers + 1, share=self.dropout)

    def hidden(self, params: dict, rows: Vectors, said: Vectors, keys: Array | None) -> Vectors:
        """Returns the output for each position.

        Args:
            params: Parameters, as `init` returns them.
            rows: Rows of the item table, (batch, length, item_width).
            said: The language model's output, (batch, length, width).
            keys: A PRNG key per example; None turns dropout off.
        """
        said = dropped(said, keys, self.reader.decoder.shape.layers + 2, share=self.dropout)
        x = rows + dot(said, params["said"]["kernel"], self.compute)
        return self.reader.hidden(params, dropped(x, keys, 0, share=self.dropout), keys)


Reader = SmallReader | PublishedReader
"""Reader without embeddings: blocks and a final norm, which are not trained if `frozen` is True."""


def with_weights(params: Params, folder: Path, shape: DecoderShape) -> Params:
    """Returns parameters with the published model's weights, which replace the old ones."""
    part = "frozen" if "model" in params.get("frozen", {}) else "trainable"
    return params | {part: params[part] | {"model": load_over(params[part]["model"], folder, shape, words=False)}}
