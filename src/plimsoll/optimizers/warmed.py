"""A learning rate that warms up and then stays, or falls as a cosine: the published one of the recursive models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike
    from optax import Schedule


def warmed(peak: float, *, warmup_steps: int, steps: int, final_fraction: float = 1.0) -> Schedule:
    """Returns a schedule: a function of the earlier updates (int32) to the rate of the next one (float32).

    The rate is `peak * step / warmup_steps` for the steps before `warmup_steps`, counted from 1; then a half cosine to
    `final_fraction` of the peak at `steps`. A fraction of 1 is a constant.
    """
    import jax.numpy as jnp
    import optax

    before = max(1, warmup_steps) - 1  # optax counts from 0, and would begin with a rate of 0
    curve = optax.warmup_cosine_decay_schedule(
        peak / max(1, warmup_steps), peak, before, max(steps - 1, before + 1), final_fraction * peak
    )

    def rate(count: ArrayLike) -> Array:
        return jnp.asarray(curve(jnp.asarray(count, jnp.float32)), jnp.float32)

    return rate
