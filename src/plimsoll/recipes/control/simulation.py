"""Closed loops simulated many at a time: a scan over time, all trajectories side by side.

The trajectories are the last axis, so that a step of small systems is a few long vector operations and not many small
products. float32; the matrices are made in float64 (`recipes/control/lqr.py`). The disturbances are drawn before, by
NumPy: in the scan, JAX's counter-based ones took two thirds of the time (docs/log.md, "Windows of control").
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


class Simulated(NamedTuple):
    states: Float[Array, "time states count"]
    largest: Float[Array, " count"]
    """Of the norms of all states of a trajectory; not finite where it ran away."""


@jax.jit
def simulated(
    steps: Float[Array, "states states count"],
    first: Float[Array, "states count"],
    disturbances: Float[Array, "time states count"],
) -> Simulated:
    """As many states of each trajectory as there are disturbances, the first one included; one is added after each."""

    def step(carry: tuple[Array, Array], disturbance: Array) -> tuple[tuple[Array, Array], Array]:
        state, largest = carry
        moved = jnp.sum(steps * state[None], axis=1) + disturbance
        squared = jnp.sum(state**2, axis=0)
        return (moved, jnp.where(squared <= largest, largest, squared)), state  # a NaN stays one

    (_, largest), states = jax.lax.scan(step, (first, jnp.zeros(first.shape[1])), disturbances)
    return Simulated(states, jnp.sqrt(largest))
