"""The task of predicting the next token of long windows by linear recurrences (recipes/longcontext/eigen.py)."""

import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.chunked_loss import chunked_nats
from plimsoll.models.language import NextToken
from plimsoll.recipes.longcontext.eigen import EigenBlock, Group
from plimsoll.recipes.longcontext.eigen_shape import EigenShape
from plimsoll.recipes.longcontext.positions import stretches
from plimsoll.types import COUNTED, IGNORE, Batch, Compute, LossSum, Metrics, Params


class LongTokens(NextToken):
    """A `Task`: batches hold `tokens`, ids of (batch, length + 1) of any integer type. An evaluation may have booleans
    `counted` of (batch,) besides, and reports the loss by position."""

    def __init__(self, shape: EigenShape, compute: Compute) -> None:
        stacked = Group(shape, compute) if shape.attention_every else EigenBlock(shape, compute)
        super().__init__(shape, compute, stacked)

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns the loss, and in an evaluation metrics like `loss_from_64` over the stretch that begins there."""
        batch = _shifted(batch)
        if train:
            return super().loss(params, carry, batch, keys, train=train)
        weights, labels = params["trainable"], batch["labels"]
        hidden = self.decoder.hidden(weights, batch["input_ids"])
        nats = chunked_nats(
            hidden.reshape(labels.size, -1),
            self.decoder.head_weights(weights),
            labels.reshape(-1),
            head=self.decoder.head,
            chunk=self.compute.loss_chunk,
        ).reshape(labels.shape)
        counted = (labels != IGNORE).astype(jnp.float32)
        metrics = {
            name: LossSum(jnp.sum(nats[:, start:end]), jnp.sum(counted[:, start:end]))
            for name, (start, end) in stretches(labels.shape[1]).items()
        }
        return LossSum(jnp.sum(nats), jnp.sum(counted)), None, metrics

    def enter(self, outer: dict, batch: Batch) -> Array:
        return super().enter(outer, _shifted(batch))

    def leave(self, outer: dict, x: Array, batch: Batch) -> tuple[LossSum, Metrics]:
        return super().leave(outer, x, _shifted(batch))


def _shifted(batch: Batch) -> Batch:
    """Returns every token and the one after it, as int32. Rows that only fill up a batch are not counted."""
    ids = batch["tokens"].astype(jnp.int32)
    labels = ids[:, 1:]
    if COUNTED in batch:
        labels = jnp.where(batch[COUNTED][:, None], labels, IGNORE)
    return {"input_ids": ids[:, :-1], "labels": labels}
