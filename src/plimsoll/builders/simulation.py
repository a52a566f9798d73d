"""Closed loops simulated many at a time: a scan over time, all trajectories side by side.

The trajectories are the last axis, so that a step of small systems is a few long vector operations and not many small
products. float32; the matrices are made in float64 (`builders/lqr.py`).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

SETTLED_STEP = 1e-3
"""A state that moves less than this in a step is at rest, as far as the state says."""
SETTLED_AFTER = 1000
"""Steps from which on rest is looked for."""


class Simulated(NamedTuple):
    states: Float[Array, "time states count"]
    largest: Float[Array, " count"]
    """Of the norms of all states of a trajectory; not finite where it ran away."""
    rest: Float[Array, " count"]
    """The longest time it was at rest, in steps."""


@partial(jax.jit, static_argnames=("length",))
def simulated(
    steps: Float[Array, "states states count"],
    first: Float[Array, "states count"],
    key: Array,
    noise: Float[Array, ""],
    *,
    length: int,
) -> Simulated:
    """`length` states of each trajectory, the first one included; after each step N(0, noise^2) is added to them."""

    def step(carry: tuple[Array, ...], time: Array) -> tuple[tuple[Array, ...], Array]:
        state, largest, resting, longest = carry
        moved = jnp.sum(steps * state[None], axis=1)
        moved += noise * jax.random.normal(jax.random.fold_in(key, time), state.shape)
        squared = jnp.sum(state**2, axis=0)
        still = (jnp.sum((moved - state) ** 2, axis=0) < SETTLED_STEP**2) & (time >= SETTLED_AFTER)
        resting = jnp.where(still, resting + 1, 0)
        largest = jnp.where(squared <= largest, largest, squared)  # a NaN stays one
        return (moved, largest, resting, jnp.maximum(longest, resting)), state

    count = first.shape[1]
    start = first, jnp.zeros(count), jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32)
    (_, largest, _, longest), states = jax.lax.scan(step, start, jnp.arange(length))
    return Simulated(states, jnp.sqrt(largest), longest.astype(jnp.float32))


@partial(jax.jit, static_argnames=("length",))
def extremes(
    steps: Float[Array, "states states count"],
    gains: Float[Array, "inputs states count"],
    first: Float[Array, "states count"],
    key: Array,
    noise: Float[Array, ""],
    *,
    length: int,
) -> tuple[Float[Array, "states count"], Float[Array, "inputs count"], Float[Array, "inputs count"]]:
    """Of each trajectory: largest |state|, largest |control|, mean squared control. Keeps no trajectory."""

    def step(carry: tuple[Array, ...], time: Array) -> tuple[tuple[Array, ...], None]:
        state, of_state, of_control, squares = carry
        control = jnp.sum(gains * state[None], axis=1)
        moved = jnp.sum(steps * state[None], axis=1)
        moved += noise * jax.random.normal(jax.random.fold_in(key, time), state.shape)
        of_state, of_control = jnp.maximum(of_state, jnp.abs(state)), jnp.maximum(of_control, jnp.abs(control))
        return (moved, of_state, of_control, squares + control**2), None

    none = jnp.zeros(gains.shape[::2])
    (_, of_state, of_control, squares), _ = jax.lax.scan(
        step, (first, jnp.zeros_like(first), none, none), jnp.arange(length)
    )
    return of_state, of_control, squares / length
