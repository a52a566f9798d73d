"""The exponential moving average (EMA) of the weights, which is evaluated, sampled and served instead of the weights.

After every step, average = decay * average + (1 - decay) * weights, from the first weights on (Polyak and Juditsky
1992; exponential as in Tarvainen and Valpola 2017, https://arxiv.org/abs/1703.01780, equation 1). The average is a
complete copy of the weights: 4 bytes for each weight, or 2 with `--ema-bits 16`.

16 bits: bfloat16, rounded at random. A training step changes the average by far less than half a step of bfloat16, so
that an average rounded to the nearest would stand still. Rounded at random it moves, with noise: the root of the
product of a bfloat16 step (2^-8 of the weight) and half of the average's lag behind the weights. The lag is small once
the learning rate has decayed. Norms and biases stay float32.
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
    """The rule of the average: `decay` per optimizer step, from 0 to 1, and `bits` of each stored number.

    Weights may be float32 or bfloat16. Leaves with at most one axis are always stored in float32. Evaluation reads
    the stored average through `levers.weight_bits.readable`.
    """

    decay: float
    bits: EmaBits = 32

    def start(self, weights: Any) -> Any:
        """Returns the initial average as it is stored: float32, or uint16 with the bits of bfloat16."""
        wide = _float32(weights)
        return wide if self.bits == 32 else jax.tree.map(lambda leaf: split(leaf)[0] if leaf.ndim > 1 else leaf, wide)

    def after(self, kept: Any, weights: Any, step: Array) -> Any:
        """Returns the stored average `kept`, updated by the weights after `step` (int32 scalar). Donate `kept`."""
        leaves, treedef = jax.tree.flatten(kept)
        changed = [
            self._leaf(old, new, random_key(step, -1 - number))  # negative: other keys than the rounding of weights
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
