"""AdamW, with the gradient of the whole effective batch clipped to a global norm.

Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101. Importing this file imports no optax, because recipes hold
these settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.optimizers.settings import Clipped
from plimsoll.options import NonNegativeFloat, Share
from plimsoll.types import WHOLE, Storage

if TYPE_CHECKING:
    import optax

    from plimsoll.optimizers.adamw8 import Adam


@dataclass(frozen=True, kw_only=True)
class AdamW(Clipped):
    """Settings of the AdamW optimizer. The planner may store its state in fewer bits or elsewhere to save memory.

    Source: https://arxiv.org/abs/1711.05101.

    Example:
        >>> plimsoll.AdamW(learning_rate=3e-4, warmup_steps=200, clip_norm=None).weight_decay
        0.01
    """

    name = "adamw"
    levers = ("optimizer_bits", "weight_bits", "offload", "layerwise")

    weight_decay: NonNegativeFloat = 0.01
    """Weight decay, multiplied by the learning rate; applied to matrices and embeddings, not to norms and biases."""
    beta1: Share = 0.9
    """Decay rate of the first moment."""
    beta2: Share = 0.999
    """Decay rate of the second moment."""
    epsilon: float = 1e-8
    """Constant added to the square root of the second moment."""

    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        from plimsoll.optimizers.adamw8 import build

        return build(self.adam(steps), storage)

    def adam(self, steps: int) -> Adam:
        """Returns the rule's hyperparameters for a run of `steps` updates."""
        from plimsoll.optimizers.adamw8 import Adam

        return Adam(
            schedule=self.schedule(steps),
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm or None,
        )
