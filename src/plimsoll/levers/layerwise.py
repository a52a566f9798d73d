"""Layerwise updates: each layer is updated as soon as its gradient is ready, so the whole gradient never exists.

A step's gradient takes 4 bytes a weight, as much as the weights. Here the forward pass keeps the input of every layer,
and the backward pass computes each layer again. A layer's gradient goes into weights and optimizer state before the
gradient of the layer below is computed. So the step holds the gradient of one layer, and of the weights outside the
layers (embedding, head). Lv et al. 2023, https://arxiv.org/abs/2306.09782 (LOMO).

Clipping to a global norm needs the norm before the first update. Then there are two backward passes: one for the norm,
whose gradients are thrown away, and one that updates.

Price: with one pass the arithmetic of `remat block`; with two, 7/4 of its arithmetic in layers. Leave it off if smaller
micro-batches fit: it takes the whole effective batch at once, since a sum over micro-batches needs the whole gradient.
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
    """Returns the gradients of weights and input of layer `number`, from the gradient `towards` of its output."""
    cut = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, number, keepdims=False), (stacked, inputs))
    weights, x = fetched(cut)  # inputs may lie on the host
    _, pull = jax.vjp(lambda weights, x: task.block(weights, x, batch, number), readable(weights), x)
    return pull(towards)
