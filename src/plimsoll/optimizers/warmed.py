"""A learning rate that warms up and then stays, or falls as a cosine: the published one of the recursive models.

Importing this file imports no optax, because recipes hold these settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike
    from optax import Schedule


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """Settings that the recursive models' two optimizers share."""

    learning_rate: float = 1e-4
    """Learning rate when warm-up ends."""
    warmup_steps: int = 2_000
    """Warm-up in optimizer steps, not micro-batches."""
    final_fraction: float = 1.0
    """Share of the learning rate at the last step, the end of a cosine; 1 keeps it constant."""
    weight_decay: float = 1.0
    """Decoupled decay: of every weight, or of the rows that a step has read."""

    def schedule(self, steps: int) -> Schedule:
        """Returns a function of the earlier updates (int32) to the rate of the next one (float32), over `steps`.

        The rate is `learning_rate * step / warmup_steps` for the steps before `warmup_steps`, counted from 1; then a
        half cosine to `final_fraction` of it at `steps`.
        """
        import jax.numpy as jnp
        import optax

        peak, warmup = self.learning_rate, max(1, self.warmup_steps)
        before = warmup - 1  # optax counts from 0, and would begin with a rate of 0
        curve = optax.warmup_cosine_decay_schedule(
            peak / warmup, peak, before, max(steps - 1, before + 1), self.final_fraction * peak
        )

        def rate(count: ArrayLike) -> Array:
            return jnp.asarray(curve(jnp.asarray(count, jnp.float32)), jnp.float32)

        return rate

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        """Returns whether the first `taken` rates are the same in runs of `steps` and of `longer`."""
        return steps == longer or self.final_fraction == 1 or taken <= max(1, self.warmup_steps)
