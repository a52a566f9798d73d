"""Lion: every weight moves by the sign of a momentum, so all weights move equally far. Chen et al. 2023.

    update = rate (sign(beta1 momentum + (1 - beta1) gradient) + decay weight)

https://arxiv.org/abs/2302.06675. It keeps one number for each weight, 4 bytes instead of AdamW's 8. Take a learning
rate 3 to 10 times smaller than AdamW's, and a weight decay larger by the same factor (their section 5). The rule is
optax's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.optimizers.settings import Clipped, decayed
from plimsoll.options import NonNegativeFloat, PositiveFloat, Share
from plimsoll.types import WHOLE, Storage

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, kw_only=True)
class Lion(Clipped):
    """Settings of Lion, which keeps half as much state as AdamW. Source: https://arxiv.org/abs/2302.06675.

    Its learning rate is 3 to 10 times smaller than AdamW's, and its weight decay larger by the same factor.

    Example:
        >>> plimsoll.Lion(learning_rate=1e-4, warmup_steps=200).weight_decay
        0.1
    """

    name = "lion"
    levers = ("offload", "layerwise")

    learning_rate: PositiveFloat = 1e-4
    weight_decay: NonNegativeFloat = 0.1
    """Weight decay, multiplied by the learning rate; applied to matrices and embeddings, not to norms and biases."""
    beta1: Share = 0.9
    """Weight of the momentum in the sum whose sign is the update; the gradient has the weight 1 - beta1."""
    beta2: Share = 0.99
    """Decay rate of the momentum."""

    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        import optax

        from plimsoll.optimizers.streaming import clipped

        rule = optax.lion(
            self.schedule(steps), b1=self.beta1, b2=self.beta2, weight_decay=self.weight_decay, mask=decayed
        )
        return clipped(rule, self.clip_norm)
