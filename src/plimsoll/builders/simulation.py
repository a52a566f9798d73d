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


class Simulated(NamedTuple):
    states: Float[Array, "time states count"]
    largest: Float[Array, " count"]
    """Of the norms of all states of a trajectory; not finite where it ran away."""


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

    def step(carry: tuple[Array, Array], time: Array) -> tuple[tuple[Array, Array], Array]:
        state, largest = carry
        moved = jnp.sum(steps * state[None], axis=1)
        moved += noise * jax.random.normal(jax.random.fold_in(key, time), state.shape)
        squared = jnp.sum(state**2, axis=0)
        return (moved, jnp.where(squared <= largest, largest, squared)), state  # a NaN stays one

    (_, largest), states = jax.lax.scan(step, (first, jnp.zeros(first.shape[1])), jnp.arange(length))
    return Simulated(states, jnp.sqrt(largest))


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
