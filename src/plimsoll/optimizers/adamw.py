"""AdamW under a warm-up and a cosine, with the gradient of the whole effective batch clipped to a global norm.

Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101. optax does the work; importing this file does not
import it, because recipes hold these settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.errors import RecipeError
from plimsoll.types import NORMS_AND_BIASES

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Settings of the AdamW optimizer, with linear warm-up and cosine decay of the learning rate.

    Return it from a recipe's `optimizer` instead of an optax transformation, and the planner may store the optimizer
    state in 8 bits to save memory. Source: https://arxiv.org/abs/1711.05101.

    Example:
        >>> plimsoll.AdamW(learning_rate=3e-4, warmup_steps=200, clip_norm=None).weight_decay
        0.01
    """

    learning_rate: float = 5e-4
    """Peak learning rate, reached at the end of warm-up."""
    warmup_steps: int = 100
    """Optimizer steps over which the learning rate rises from 0 to its peak."""
    final_fraction: float = 0.1
    """Learning rate at the end of the cosine decay, as a fraction of its peak."""
    weight_decay: float = 0.01
    """Weight decay, multiplied by the learning rate; applied to matrices and embeddings, not to norms and biases."""
    beta1: float = 0.9
    """Decay rate of the first moment."""
    beta2: float = 0.999
    """Decay rate of the second moment."""
    epsilon: float = 1e-8
    """Constant added to the square root of the second moment."""
    clip_norm: float | None = 1.0
    """Largest global norm of a step's gradient; larger gradients are scaled down to it. None disables clipping."""

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise RecipeError(f"--warmup-steps must be 0 or more, got {self.warmup_steps}")
        if not 0 < self.learning_rate < math.inf:  # so that NaN is refused too, here and below
            raise RecipeError(f"--learning-rate must be above 0 and finite, got {self.learning_rate:g}")
        for name in ("weight_decay", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise RecipeError(f"--{name.replace('_', '-')} must be 0 or more and finite, got {value:g}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise RecipeError(f"--{name} must be at least 0 and below 1, got {getattr(self, name):g}")

    def schedule(self, steps: int) -> optax.Schedule:
        """Returns the learning-rate schedule: linear warm-up, then cosine decay.

        Args:
            steps: Optimizer steps of the whole run.

        Returns:
            An optax schedule: a function from the step number, counted from 0, to the learning rate. It rises from 0 to
            `learning_rate` within `warmup_steps`, and falls to `final_fraction` of that at step `steps`. In a run of at
            most `warmup_steps` steps, the warm-up takes a tenth of them.
        """
        import optax

        warmup = self._warmup(steps)
        return optax.warmup_cosine_decay_schedule(
            0.0 if warmup else self.learning_rate,
            self.learning_rate,
            warmup,
            max(steps, warmup + 1),
            self.final_fraction * self.learning_rate,
        )

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        """Returns whether runs of `steps` and of `longer` steps have the same first `taken` learning rates.

        If so, a run of `steps` that has taken `taken` of them can continue to `longer` as if it had been planned that
        long. Rates are the same during an equally long warm-up, and after it only if `final_fraction` is 1 (no decay).

        Args:
            steps: Optimizer steps of the run.
            longer: Optimizer steps of the extended run.
            taken: Optimizer steps that the run has taken so far.
        """
        warmup = self._warmup(steps)
        return warmup == self._warmup(longer) and (self.final_fraction == 1 or taken <= warmup + 1)

    def _warmup(self, steps: int) -> int:
        return max(1, steps // 10) if self.warmup_steps >= steps else self.warmup_steps


def decayed(params: Any) -> Any:
    """Returns True for every leaf that weight decay applies to."""
    import jax

    return jax.tree_util.tree_map_with_path(
        lambda path, _: NORMS_AND_BIASES.isdisjoint(str(getattr(entry, "key", entry)) for entry in path), params
    )
