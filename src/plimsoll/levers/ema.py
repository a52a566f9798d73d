"""The exponential moving average of the weights: what is evaluated, sampled and served instead of the last weights.

After every step, average = decay * average + (1 - decay) * weights, from the first weights on (Polyak and Juditsky
1992; exponential as in Tarvainen and Valpola 2017, https://arxiv.org/abs/1703.01780, equation 1). It is a whole copy of
the weights: 4 bytes for each, and a lever to keep it in 2.

16 bits: bfloat16, rounded at random. What a step adds to the average is far below half a step of bfloat16, so that an
average rounded to the nearest would stand still. Rounded at random it moves, with a jitter: the root of the product of
such a step (2^-8 of the weight) and half of what the average lags behind the weights, which is little where the
learning rate has decayed. Norms and biases stay float32.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from plimsoll.levers.offload import on_host, over_host_pieces
from plimsoll.levers.weight_bits import random_bits, random_key, readable, round_at_random, split, widen

EmaBits = Literal[32, 16]


@dataclass(frozen=True)
class Average:
    """`decay` per optimizer step, from 0 to 1; `bits` of each number kept.

    The weights given to it may be float32 or bfloat16; leaves of one axis or none are kept in float32 either way.
    `levers.weight_bits.readable(kept)` is what the forward pass takes.
    """

    decay: float
    bits: EmaBits = 32

    def start(self, weights: Any) -> Any:
        """Returns the initial average of weights, as it is stored: float32, or uint16, the bits of bfloat16."""
        wide = _float32(weights)
        return wide if self.bits == 32 else jax.tree.map(lambda leaf: split(leaf)[0] if leaf.ndim > 1 else leaf, wide)

    def after(self, kept: Any, weights: Any, step: Array) -> Any:
        """Returns the average with the weights after `step` (int32 scalar) in it. Donate `kept`."""
        leaves, treedef = jax.tree.flatten(kept)
        changed = [
            self._leaf(old, new, random_key(step, -1 - number))  # other numbers than the weights' own rounding draws
            for number, (old, new) in enumerate(zip(leaves, jax.tree.leaves(_float32(weights)), strict=True))
        ]
        return jax.tree.unflatten(treedef, changed)

    def _leaf(self, old: Array, new: Array, key: Array) -> Array:
        if on_host(old):
            return over_host_pieces(self._moved, old, new)
        if old.dtype != jnp.uint16:
            return self._moved(old, new)
        elements = jnp.arange(old.size, dtype=jnp.uint32).reshape(old.shape)
        return round_at_random(self._moved(widen(old), new), random_bits(key, elements))

    def _moved(self, average: Array, weights: Array) -> Array:
        return average + (1 - self.decay) * (weights - average)


def _float32(weights: Any) -> Any:
    """Returns stored weights as the forward pass reads them, in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), readable(weights))
