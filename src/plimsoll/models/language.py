"""The loss of next-token prediction with a `Decoder`."""

from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.chunked_loss import LIFT, chunked_cross_entropy
from plimsoll.models.decoder import Decoder, Places, StackedBlock
from plimsoll.models.shape import DecoderShape
from plimsoll.types import COUNTED, IGNORE, Batch, Compute, LossSum, Metrics, Params


class NextToken:
    """Next-token prediction, a `types.Task` (model and loss).

    Batches hold `input_ids` and `labels`, int32 of (batch, length), or `tokens` (see `pairs`). They may also hold
    `segments` and `positions` of documents (see `Decoder.hidden`), and `learned`, which is 0 for labels that do not
    count in the loss. A label of `IGNORE` (-1) does not count, either.
    """

    stacked = "blocks"
    in_halves = False
    """Whether the backward pass recomputes a `decoder.Block` in two halves."""

    def __init__(
        self, shape: DecoderShape, compute: Compute, stacked: StackedBlock | None = None, *, frozen: bool = False
    ) -> None:
        self.decoder = Decoder(shape, compute, stacked, frozen=frozen, in_halves=self.in_halves)
        self.compute = compute
        self.unrolled = ("blocks",) if self.decoder.unrolls else ()

    def init(self, key: Array) -> Params:
        return {"trainable": self.decoder.init(key)}

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns the cross-entropy in nats, summed over labels that count. Ignores `keys` and `train`: no dropout."""
        weights, batch = cast(Any, params["trainable"]), pairs(batch)
        hidden = self.decoder.hidden(weights, batch["input_ids"], **_documents(batch))
        return self._summed(weights, hidden, batch), None, {}

    def enter(self, outer: dict, batch: Batch) -> Array:
        """Embeds the tokens. `enter`, `block` and `leave` are the loss in three parts (`types.Layered`)."""
        return self.decoder.embedded(outer, pairs(batch)["input_ids"])

    def block(self, layer: dict, x: Array, batch: Batch, number: Array) -> Array:
        places: Places = self.decoder.places(x.shape[1], **_documents(batch))
        if windowed := self.decoder.shape.windowed:
            places = places._replace(windowed=jnp.asarray(windowed)[number])
        return self.decoder.block(layer, x, places)

    def leave(self, outer: dict, x: Array, batch: Batch) -> tuple[LossSum, Metrics]:
        return self._summed(outer, self.decoder.normed(outer, x), pairs(batch)), {}

    def _summed(self, weights: dict, hidden: Array, batch: Batch) -> LossSum:
        """Returns the cross-entropy in nats, summed over the labels that count, and their number."""
        labels = batch["labels"].reshape(-1)
        if "learned" in batch:
            labels = jnp.where(batch["learned"].reshape(-1) > 0, labels, IGNORE)
        total = chunked_cross_entropy(
            hidden.reshape(labels.size, -1),
            self.decoder.head_weights(weights),
            labels,
            head=self.decoder.head,
            learned=not self.decoder.frozen,
            chunk=self.compute.loss_chunk,
            lift=LIFT if self.compute.precision == "float16" else 1.0,
            platform=self.compute.platform,
        )
        return LossSum(total, jnp.sum(labels != IGNORE, dtype=jnp.float32))

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names of weights that the loss decodes in parts (`types.ReadsInParts`): only on a CPU; else empty."""
        if self.compute.platform != "cpu":
            return ()
        return ("embedding", "head") if self.decoder.unrolls else ("embedding", "head", "blocks")


def _documents(batch: Batch) -> dict[str, Array]:
    """Returns the entries `segments` and `positions` of a batch, if it has them."""
    return {name: batch[name] for name in ("segments", "positions") if name in batch}


def pairs(batch: Batch) -> Batch:
    """Returns the batch with int32 `input_ids` and `labels`, made from `tokens` if the batch has `tokens`.

    `tokens` has shape (batch, length + 1) and any integer type; labels are the next tokens. `counted`, booleans of
    shape (batch,), is False for rows that do not count: their labels become `IGNORE`.
    """
    if "tokens" not in batch:
        return batch
    ids = batch["tokens"].astype(jnp.int32)
    labels = ids[:, 1:]
    if COUNTED in batch:
        labels = jnp.where(batch[COUNTED][:, None], labels, IGNORE)
    return {"input_ids": ids[:, :-1], "labels": labels}
