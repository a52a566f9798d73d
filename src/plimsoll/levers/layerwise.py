"""Layerwise backward-and-update: a layer is updated as soon as it has its gradient, so the whole one never exists.

A step's gradient takes 4 bytes a weight, as much as the weights. Here the forward pass keeps the input of every layer,
the backward pass computes a layer again, and its gradient goes into weights and optimizer state before that of the
layer below is made: what is left is the gradient of one layer, and of what lies outside the layers (embedding, head).
Lv et al. 2023, https://arxiv.org/abs/2306.09782 (LOMO).

A gradient that is clipped to a global norm needs that norm before the first update: then there are two backward
passes, one for the norm, whose gradients are thrown away, and one that updates.

Price: with one pass the arithmetic is that of `remat block`; with two, 7/4 of it in the layers. Leave it off where
micro-batches can be smaller: it takes the whole effective batch at once, since a gradient that is summed over
micro-batches must be held.
"""

from typing import Any

import jax
from jax import Array, lax

from plimsoll.levers.offload import fetched
from plimsoll.levers.weight_bits import readable
from plimsoll.types import Batch, Layered


def layer_gradient(
    task: Layered, stacked: Any, inputs: Array, number: Array, batch: Batch, towards: Array
) -> tuple[Any, Array]:
    """Returns the gradients of the weights and of the input of layer `number`, from `towards`, that of its output."""
    cut = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, number, keepdims=False), (stacked, inputs))
    weights, x = fetched(cut)  # where inputs wait on the host
    _, pull = jax.vjp(lambda weights, x: task.block(weights, x, batch, number), readable(weights), x)
    return pull(towards)
