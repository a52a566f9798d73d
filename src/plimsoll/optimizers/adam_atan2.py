"""Adam with an arctangent instead of the quotient: no epsilon, and bounded steps. Everett et al. 2024.

With Adam's moments m and v, a step is

    p = p (1 - rate decay) - rate / (1 - beta1^t) * atan2(m, sqrt(v) / sqrt(1 - beta2^t))

https://arxiv.org/abs/2407.05872, section 5, without the two factors of their equation, and with the correction of m
outside of the arctangent, as in the code that trained the published recursive models. The first step is rate * 0.9967
for every nonzero gradient, whatever its size; no step is longer than rate * pi / 2 / (1 - beta1^t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from plimsoll.optimizers.settings import Rates
from plimsoll.options import NonNegativeFloat, Share
from plimsoll.types import WHOLE, Storage

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, kw_only=True)
class AdamATan2(Rates):
    """Settings of Adam-atan2, which has no epsilon and no clipping. Source: https://arxiv.org/abs/2407.05872.

    Example:
        >>> plimsoll.AdamATan2(learning_rate=3e-4, warmup_steps=200).beta2
        0.95
    """

    name = "adam-atan2"
    levers = ("offload", "layerwise")
    rises_from_zero = False

    weight_decay: NonNegativeFloat = 0.1
    """Weight decay, multiplied by the learning rate; applied to every weight."""
    beta1: Share = 0.9
    """Decay rate of the first moment."""
    beta2: Share = 0.95
    """Decay rate of the second moment."""

    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        from plimsoll.optimizers.streaming import clipped

        return clipped(adam_atan2(self, steps), None)


class AdamATan2State(NamedTuple):
    """Optimizer state of `adam_atan2`."""

    count: Any
    """Number of updates so far, int32."""
    mean: Any
    square: Any


def adam_atan2(settings: AdamATan2, steps: int) -> optax.GradientTransformation:
    """Returns the rule for a run of `steps` steps: an optax transformation whose `update` needs the parameters."""
    import jax
    import jax.numpy as jnp
    import optax

    schedule = settings.schedule(steps)
    beta1 = settings.beta1
    beta2 = settings.beta2

    def init(params: Any) -> AdamATan2State:
        return AdamATan2State(jnp.int32(0), optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def correction(beta: float, count: Any) -> Any:
        # `expm1`, because 1 - beta^t would lose digits in float32 at the first steps.
        return -jnp.expm1(count.astype(jnp.float32) * math.log(beta)) if beta else jnp.float32(1)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AdamATan2State]:
        rate: Any = schedule(state.count)
        count = state.count + 1
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, updates)
        square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.square, updates)
        of_mean = correction(beta1, count)
        of_square = correction(beta2, count)

        def step(m: Any, v: Any, p: Any) -> Any:
            angle = jnp.arctan2(m, jnp.sqrt(v) / jnp.sqrt(of_square))
            return -rate * settings.weight_decay * p - rate / of_mean * angle

        return jax.tree.map(step, mean, square, params), AdamATan2State(count, mean, square)

    return optax.GradientTransformation(init, update)
