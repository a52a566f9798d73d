"""A learning rate that warms up and then stays, or falls as a cosine: the published one of the recursive models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """`peak * step / warmup_steps` for the steps before `warmup_steps`, counted from 1; then a half cosine to
    `final_fraction` of the peak at `steps`. A fraction of 1 is a constant."""

    peak: float
    warmup_steps: int
    steps: int
    final_fraction: float = 1.0

    def __call__(self, count: Array) -> Array:
        """After `count` (int32) updates: the rate of the next one, float32."""
        import jax.numpy as jnp

        step = (count + 1).astype(jnp.float32)
        warming = step / max(1, self.warmup_steps)
        through = jnp.clip((step - self.warmup_steps) / max(1, self.steps - self.warmup_steps), 0.0, 1.0)
        fallen = self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + jnp.cos(jnp.pi * through))
        return self.peak * jnp.where(step < self.warmup_steps, warming, fallen)
