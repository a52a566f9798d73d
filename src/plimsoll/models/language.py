"""The task of predicting the next token with a `Decoder`: its parameters and its summed loss."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from plimsoll.levers.chunked_loss import LIFT, chunked_cross_entropy
from plimsoll.levers.remat import restacked, unstacked
from plimsoll.models.decoder import Decoder, StackedBlock
from plimsoll.models.rotary import rotary_angles
from plimsoll.models.sizing import DecoderShape
from plimsoll.types import IGNORE, Batch, Compute, LossSum, Metrics, Params


class NextToken:
    """A `Task` whose batches hold `input_ids` and `labels`, int32 of (batch, length).

    A label of `IGNORE` is not counted.
    """

    stacked = "blocks"

    def __init__(self, shape: DecoderShape, compute: Compute, stacked: StackedBlock | None = None) -> None:
        self.decoder, self.compute = Decoder(shape, compute, stacked), compute

    def init(self, key: Array) -> Params:
        return {"trainable": self.decoder.init(key)}

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns nats, summed over the counted tokens. There is no dropout, so `keys` and `train` change nothing."""
        weights = params["trainable"]
        return self._summed(weights, self.decoder.hidden(weights, batch["input_ids"]), batch), None, {}

    def enter(self, outer: dict, batch: Batch) -> Array:
        """Embeds the tokens. This and the next two are `loss` in parts; see `types.Layered`."""
        return self.decoder.embedded(outer, batch["input_ids"])

    def block(self, layer: dict, x: Array, batch: Batch, number: Array) -> Array:
        del batch, number  # all layers are alike, and a row is one text
        return self.decoder.block(layer, x, rotary_angles(x.shape[1], self.decoder.shape.head_width))

    def leave(self, outer: dict, x: Array, batch: Batch) -> tuple[LossSum, Metrics]:
        return self._summed(outer, self.decoder.normed(outer, x), batch), {}

    def _summed(self, weights: dict, hidden: Array, batch: Batch) -> LossSum:
        return summed_nats(self.decoder, weights, hidden, batch["labels"].reshape(-1), self.compute)

    @property
    def in_parts(self) -> tuple[str, ...]:
        """Names of weights that are read in parts; see `types.ReadsInParts`. An accelerator reads bfloat16 as it is."""
        if self.compute.platform != "cpu":
            return ()
        return ("embedding", "head") if self.decoder.unrolls else ("embedding", "head", "blocks")

    def unstack(self, trainable: dict) -> dict:
        """Returns the blocks as a list of layers, where they are unrolled; see `types.Unstacks`."""
        if not self.decoder.unrolls:
            return trainable
        return trainable | {"blocks": unstacked(trainable["blocks"], self.decoder.shape.blocks)}

    def stack(self, gradient: dict) -> dict:
        if not self.decoder.unrolls:
            return gradient
        return gradient | {"blocks": restacked(gradient["blocks"])}


def summed_nats(
    model: Any, weights: dict, hidden: Array, labels: Int[Array, " tokens"], compute: Compute, *, learned: bool = True
) -> LossSum:
    """Returns the nats of the labels that count, and their number.

    Args:
        model: Has `head` and `head_weights`, as a `Decoder` has them.
        weights: Parameters with those of the head.
        hidden: Output of the model.
        labels: Tokens to predict, or `IGNORE`.
        compute: How it is computed.
        learned: Whether the head takes a gradient.
    """
    total = chunked_cross_entropy(
        hidden.reshape(labels.size, -1),
        model.head_weights(weights),
        labels,
        head=model.head,
        learned=learned,
        chunk=compute.loss_chunk,
        lift=LIFT if compute.precision == "float16" else 1.0,
        platform=compute.platform,
    )
    return LossSum(total, jnp.sum(labels != IGNORE, dtype=jnp.float32))
