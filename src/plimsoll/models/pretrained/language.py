"""The task of predicting the next token with a published model: whole, or frozen beside adapters (levers/lora.py)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.activations import stream
from plimsoll.levers.frozen import FrozenBits, packed
from plimsoll.models.language import summed_nats
from plimsoll.models.pretrained.model import Pretrained
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.pretrained.weights import kept
from plimsoll.types import IGNORE, Batch, Compute, LossSum, Metrics, Params


class PretrainedNextToken:
    """A `Task` whose batches hold `input_ids` and `labels`, int32 of (batch, length).

    They may hold `segments` and `positions` of documents in a row (`Pretrained.hidden`), and `counted`, 0 at labels
    that are not to be learned; a label of `IGNORE` is not counted either. `frozen` as in `Pretrained`.
    """

    def __init__(self, shape: PretrainedShape, compute: Compute, *, frozen: bool = True) -> None:
        self.model, self.compute = Pretrained(shape, compute, frozen=frozen), compute

    stacked = "blocks"

    def init(self, key: Array) -> Params:
        return {"trainable": self.model.init(key)}

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        """Returns the model's weights in so many bits (`types.StoresFrozen`).

        The embedding and an output layer of its own have 16 at least, since every token goes through them, or as many
        as the lever `embedding_bits` says: a table in 8 or 4 is packed as the kernel that its output layer reads.
        """
        of_words: FrozenBits = self.compute.lever("embedding_bits", 16)
        words = {name: frozen[name] for name in ("embedding", "head") if name in frozen}
        kept_words = kept(words, max(bits, 16)) if of_words == 16 else {}  # type: ignore[arg-type]
        if of_words in (8, 4):
            kept_words = {
                name: packed(leaf.T if name == "embedding" else leaf, of_words) for name, leaf in words.items()
            }
        return kept({name: part for name, part in frozen.items() if name not in words}, bits) | kept_words

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns nats, summed over the counted tokens. The model has no dropout: `keys` and `train` change nothing."""
        weights: Any = params["trainable"]
        hidden = self.model.hidden(weights, batch["input_ids"], **_places(batch))
        return self._summed(weights, hidden, batch), None, {}

    def enter(self, outer: dict, batch: Batch) -> Array:
        """Embeds the tokens. This and the next two are `loss` in parts; see `types.Layered`."""
        return stream(self.model.embedded(outer, batch["input_ids"]), self.compute)

    def block(self, layer: dict, x: Array, batch: Batch, number: Array) -> Array:
        windowed = self.model.shape.windowed
        of_layer = jnp.asarray(windowed)[number] if len(set(windowed)) > 1 else any(windowed)
        return self.model.block(layer, x, self.model.places(x.shape[1], **_places(batch)), windowed=of_layer)

    def leave(self, outer: dict, x: Array, batch: Batch) -> tuple[LossSum, Metrics]:
        return self._summed(outer, self.model.normed(outer["norm"], x), batch), {}

    def _summed(self, weights: dict, hidden: Array, batch: Batch) -> LossSum:
        labels = batch["labels"].reshape(-1)
        if "counted" in batch:
            labels = jnp.where(batch["counted"].reshape(-1) > 0, labels, IGNORE)
        return summed_nats(self.model, weights, hidden, labels, self.compute, learned=not self.model.frozen)


def _places(batch: Batch) -> dict[str, Any]:
    return {name: batch[name] for name in ("segments", "positions") if name in batch}
