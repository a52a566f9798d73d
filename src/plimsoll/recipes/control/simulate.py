"""Simulates systems with the learned and with the optimal controller, and compares the costs.

A journey is one simulation: both controllers start in the same state and share every disturbance. The optimal one
drives the first window of steps, so that the learned one gets a full window as in training; then each drives a copy of
the system. The cost is the integral of |x|^2 + 0.1 |u|^2 after that window. The ratio is the learned controller's cost
over the optimal one's: except by chance, 1 is the best.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from plimsoll.recipes.control.lqr import System, held
from plimsoll.recipes.control.prepare import code
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.systems import MOST_INPUTS, MOST_STATES
from plimsoll.recipes.control.tables import NEAR

CONTROL_WEIGHT = 0.1
START = 0.5
"""Half-width of the box of initial states, as a share of the half-width in training."""
LOST = 1e4
"""Norm of the state at which a system counts as lost: its cost ratio is infinite."""

Predict = Callable[[Float[Array, "count window features"]], Float[Array, "count inputs"]]
"""Function from windows of scaled states and codes to scaled controls."""


class Journeys(NamedTuple):
    """Systems and initial states of journeys: one row for each family, variant and start."""

    family: np.ndarray
    plant: np.ndarray
    """Matrix Ad of each journey's system, (count, 12, 12): in a step the state x becomes Ad x + Bd u."""
    push: np.ndarray
    """Matrix Bd of each journey's system, (count, 12, 6)."""
    gain: np.ndarray
    start: np.ndarray
    state_scale: np.ndarray
    control_scale: np.ndarray
    """Factors from the network's outputs to controls."""
    code: np.ndarray


def journeys(
    systems: list[System],
    options: ControlSet,
    *,
    variants: list[int],
    starts: int,
    scales: Mapping[str, tuple[np.ndarray, np.ndarray]],
    seed: int,
) -> Journeys:
    """Samples initial states. `scales` holds the units of each family's states and of its predicted controls."""
    random = np.random.default_rng([seed, 6])
    rows = []
    for number, system in enumerate(systems):
        inputs, states = system.gain.shape
        state_scale, control_scale = scales[system.family.name]
        for variant in variants:
            plant, push = held(*system.family.matrices(system.parameters[variant]), options.dt)
            for _ in range(starts):
                start = START * np.array(system.family.box) * random.uniform(-1, 1, states)
                row = Journeys(
                    family=np.array(number, np.int32),
                    plant=_padded(plant, MOST_STATES, MOST_STATES),
                    push=_padded(push, MOST_STATES, MOST_INPUTS),
                    gain=_padded(system.gain, MOST_INPUTS, MOST_STATES),
                    start=_padded(start, MOST_STATES),
                    state_scale=_padded(state_scale, MOST_STATES, fill=1),
                    control_scale=_padded(control_scale, MOST_INPUTS),
                    code=np.array(code(inputs, states), np.float32),
                )
                rows.append(row)
    return Journeys(*map(np.array, zip(*rows, strict=True)))


def _padded(values: np.ndarray, *shape: int, fill: float = 0) -> np.ndarray:
    missing = [(0, most - size) for most, size in zip(shape, values.shape, strict=True)]
    return np.pad(values, missing, constant_values=fill).astype(np.float32)


def simulate_journeys(
    starts: Journeys, predict: Predict, options: ControlSet, *, steps: int, seed: int
) -> dict[str, np.ndarray]:
    """Simulates the journeys of both controllers, with the window, step and noise of a data set.

    Returns:
        `cost` of each journey, (2, count), and `norms` of states, (2, steps, count): index 0 is the optimal controller.
    """

    @jax.jit
    def simulated(of: Journeys, key: Array) -> dict[str, Array]:
        exists = jnp.any(of.plant != 0, axis=2)

        def moved(state: Array, control: Array, time: Array) -> Array:
            drift = jnp.einsum("nij,nj->ni", of.plant, state) + jnp.einsum("nij,nj->ni", of.push, control)
            shaken = jax.random.normal(jax.random.fold_in(key, time), state.shape)
            return jnp.clip(
                drift + options.noise * jnp.where(exists, shaken, 0), -LOST, LOST
            )  # lost states do not overflow

        def optimal(state: Array) -> Array:
            return -jnp.einsum("nij,nj->ni", of.gain, state)

        def step(carry: tuple[Array, Array], time: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            alone, seen = carry
            state = seen[:, -1]
            codes = jnp.broadcast_to(of.code[:, None], (*seen.shape[:2], of.code.shape[1]))
            scaled = jnp.concatenate([seen / of.state_scale[:, None], codes], axis=-1)
            control = predict(scaled) * of.control_scale
            both = (alone, optimal(alone)), (state, control)
            spent = jnp.stack([jnp.sum(x**2, axis=1) + CONTROL_WEIGHT * jnp.sum(u**2, axis=1) for x, u in both])
            norms = jnp.stack([jnp.linalg.norm(x, axis=1) for x, _ in both])
            after = moved(state, control, time)
            seen = jnp.concatenate([seen[:, 1:], after[:, None]], axis=1)
            return (moved(alone, optimal(alone), time), seen), (spent, norms)

        warming = jnp.arange(options.window - 1)
        handed_over, seen = jax.lax.scan(
            lambda state, time: (moved(state, optimal(state), time), state), jnp.asarray(of.start), warming
        )
        seen = jnp.concatenate([seen, handed_over[None]]).swapaxes(0, 1)  # (count, window, states), the last is now
        _, (spent, norms) = jax.lax.scan(step, (handed_over, seen), options.window + jnp.arange(steps))
        return {"cost": jnp.sum(spent, axis=0) * options.dt, "norms": norms.swapaxes(0, 1)}

    return jax.tree.map(np.asarray, simulated(starts, jax.random.key(seed)))


def compare_costs(starts: Journeys, names: list[str], driven: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the median and the worst cost ratio of each family, and the number of families near the optimum."""
    lost = driven["norms"][1].max(axis=0) >= LOST
    ratio = np.where(lost, np.inf, driven["cost"][1] / driven["cost"][0])
    families = {}
    for number, name in enumerate(names):
        mine = starts.family == number
        families[name] = {
            "cost_ratio": _json(np.median(ratio[mine])),
            "worst_ratio": _json(ratio[mine].max()),
            "lost": int(lost[mine].sum()),
            "journeys": int(mine.sum()),
        }
    medians = [np.inf if family["cost_ratio"] is None else family["cost_ratio"] for family in families.values()]
    return {
        "families": families,
        "near_the_optimum": sum(median < NEAR for median in medians),
        "median_cost_ratio": _json(np.median(medians)),
    }


def _json(value: np.floating) -> float | None:
    """Returns the number; None for infinity, which JSON does not have."""
    return float(value) if np.isfinite(value) else None
