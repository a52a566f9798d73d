"""The task of predicting the next token with a `Decoder`: its parameters and its summed loss."""

from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.chunked_loss import LIFT, chunked_cross_entropy
from plimsoll.models.decoder import Decoder, Places, StackedBlock
from plimsoll.models.shape import DecoderShape
from plimsoll.types import COUNTED, IGNORE, Batch, Compute, LossSum, Metrics, Params


class NextToken:
    """A `Task` whose batches hold `input_ids` and `labels`, int32 of (batch, length), or `tokens` (`pairs`).

    They may hold `segments` and `positions` of documents in a row (`Decoder.hidden`), and `learned`, 0 at labels that
    do not count; a label of `IGNORE` does not either. `frozen` as in `Decoder`.
    """

    stacked = "blocks"
    in_halves = False
    """Whether `decoder.Block` is computed again in halves."""

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
        """Returns nats, summed over the counted tokens. There is no dropout, so `keys` and `train` change nothing."""
        weights, batch = cast(Any, params["trainable"]), pairs(batch)
        hidden = self.decoder.hidden(weights, batch["input_ids"], **_documents(batch))
        return self._summed(weights, hidden, batch), None, {}

    def enter(self, outer: dict, batch: Batch) -> Array:
        """Embeds the tokens. This and the next two are `loss` in parts; see `types.Layered`."""
        return self.decoder.embedded(outer, pairs(batch)["input_ids"])

    def block(self, layer: dict, x: Array, batch: Batch, number: Array) -> Array:
        places: Places = self.decoder.places(x.shape[1], **_documents(batch))
        if windowed := self.decoder.shape.windowed:
            places = places._replace(windowed=jnp.asarray(windowed)[number])
        return self.decoder.block(layer, x, places)

    def leave(self, outer: dict, x: Array, batch: Batch) -> tuple[LossSum, Metrics]:
        return self._summed(outer, self.decoder.normed(outer, x), pairs(batch)), {}

    def _summed(self, weights: dict, hidden: Array, batch: Batch) -> LossSum:
        """Returns the nats of the labels that count, and their number."""
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
        """Names of weights that are read in parts; see `types.ReadsInParts`. An accelerator reads bfloat16 as it is."""
        if self.compute.platform != "cpu":
            return ()
        return ("embedding", "head") if self.decoder.unrolls else ("embedding", "head", "blocks")


def _documents(batch: Batch) -> dict[str, Array]:
    """Returns numbers and positions of documents, where rows hold several."""
    return {name: batch[name] for name in ("segments", "positions") if name in batch}


def pairs(batch: Batch) -> Batch:
    """Returns ids and labels, int32: those of the batch, or each of its `tokens` and the one after it.

    `tokens` are of (batch, length + 1) and any integer type, with booleans `counted` of (batch,) where some rows only
    fill up the batch; their labels become `IGNORE`.
    """
    if "tokens" not in batch:
        return batch
    ids = batch["tokens"].astype(jnp.int32)
    labels = ids[:, 1:]
    if COUNTED in batch:
        labels = jnp.where(batch[COUNTED][:, None], labels, IGNORE)
    return {"input_ids": ids[:, :-1], "labels": labels}
