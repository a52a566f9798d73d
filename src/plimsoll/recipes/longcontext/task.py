"""Training functions of next-token prediction in long windows, by linear recurrences (recipes/longcontext/eigen.py)."""

import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.chunked_loss import chunked_nats
from plimsoll.models.language import NextToken, pairs
from plimsoll.recipes.longcontext.eigen import EigenBlock, Group
from plimsoll.recipes.longcontext.model import Eigen
from plimsoll.recipes.longcontext.positions import stretches
from plimsoll.recipes.specs import TokenSpec
from plimsoll.types import IGNORE, Batch, Compute, LossSum, Metrics, Params


class LongTokens(NextToken):
    """Model and loss, with the batches of `NextToken`. An evaluation reports the loss by position."""

    def __init__(self, model: Eigen, spec: TokenSpec, compute: Compute) -> None:
        self.model = model
        shape = model.shape(vocab=spec.vocab)
        stacked = Group if model.attention_every else EigenBlock
        super().__init__(shape, compute, stacked(model, shape, compute))

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns the loss, and in an evaluation metrics like `loss_from_64`: the loss over the stretch from position
        64 on."""
        batch = pairs(batch)
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
