"""Simulation of a learned controller in the place of the optimal one, and the cost of the same journey.

Both start alike and share every disturbance. The optimal controller drives the first window of steps, so that the
learned one sees what it was trained on (a window that begins before the system does was never seen), then each goes on
alone. Cost: the integral of |x|^2 + 0.1 |u|^2 from the handover on; the ratio is the learned one's over the optimal
one's, and 1 is as good as it gets but for chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from plimsoll.recipes.control.lqr import held
from plimsoll.recipes.control.systems import MOST_INPUTS, MOST_STATES
from plimsoll.recipes.control.variants import System

CONTROL_WEIGHT = 0.1
START = 0.5
"""Share of the box that the starts of training were sampled from."""
LOST = 1e4
"""Norm of a lost state: its journey costs infinitely much."""
GRADES = (("excellent", 1.2), ("good", 2.0), ("acceptable", 5.0))

Predict = Callable[[Float[Array, "count window features"]], Float[Array, "count inputs"]]
"""From windows of scaled states and codes to scaled controls."""


@dataclass(frozen=True)
class Journeys:
    """Starts and systems: one row for each family, variant and start."""

    family: np.ndarray
    plant: np.ndarray
    """Matrix Ad of each, (count, 12, 12)."""
    push: np.ndarray
    """Matrix Bd of each, (count, 12, 6)."""
    gain: np.ndarray
    start: np.ndarray
    state_scale: np.ndarray
    control_scale: np.ndarray
    """Factors of the network's output."""
    code: np.ndarray


def journeys(
    systems: list[System],
    *,
    variants: list[int],
    starts: int,
    dt: float,
    scales: Callable[[str], tuple[np.ndarray, np.ndarray]],
    codes: Callable[[int, int], list[int]],
    seed: int,
) -> Journeys:
    """Samples the starts. `scales` returns a family's units of its states, and of the network's controls."""
    random = np.random.default_rng([seed, 6])
    rows: dict[str, list[Any]] = {name: [] for name in Journeys.__dataclass_fields__}
    for number, system in enumerate(systems):
        inputs, states = system.gain.shape
        state_scale, control_scale = scales(system.family.name)
        for variant in variants:
            plant, push = held(*system.family.matrices(system.parameters[variant]), dt)
            for _ in range(starts):
                start = START * np.array(system.family.box) * random.uniform(-1, 1, states)
                rows["family"].append(number)
                rows["plant"].append(_padded(plant, MOST_STATES, MOST_STATES))
                rows["push"].append(_padded(push, MOST_STATES, MOST_INPUTS))
                rows["gain"].append(_padded(system.gain, MOST_INPUTS, MOST_STATES))
                rows["start"].append(np.pad(start, (0, MOST_STATES - states)))
                rows["state_scale"].append(np.pad(state_scale, (0, MOST_STATES - states), constant_values=1))
                rows["control_scale"].append(np.pad(control_scale, (0, MOST_INPUTS - inputs)))
                rows["code"].append(codes(inputs, states))
    return Journeys(
        **{name: np.array(values, np.int32 if name == "family" else np.float32) for name, values in rows.items()}
    )


def _padded(matrix: np.ndarray, rows: int, cols: int) -> np.ndarray:
    return np.pad(matrix, ((0, rows - matrix.shape[0]), (0, cols - matrix.shape[1])))


def travelled(
    of: Journeys, predict: Predict, *, window: int, steps: int, dt: float, noise: float, seed: int
) -> dict[str, np.ndarray]:
    """Simulates the journeys: first the optimal controller's, then the learned one's.

    Returns:
        `cost` and `final` norm of each journey, (2, count), and `norms`, (2, steps, count).
    """
    ran = jax.jit(partial(_travelled, predict=predict, window=window, steps=steps, dt=dt, noise=noise))
    arrays = {name: jnp.asarray(getattr(of, name)) for name in Journeys.__dataclass_fields__}
    cost, final, norms = ran(arrays, jax.random.key(seed))
    return {"cost": np.asarray(cost), "final": np.asarray(final), "norms": np.asarray(norms)}


def _travelled(
    of: dict[str, Array], key: Array, *, predict: Predict, window: int, steps: int, dt: float, noise: float
) -> tuple[Array, Array, Array]:
    exists = jnp.any(of["plant"] != 0, axis=2)

    def moved(state: Array, control: Array, time: Array) -> Array:
        drift = jnp.einsum("nij,nj->ni", of["plant"], state) + jnp.einsum("nij,nj->ni", of["push"], control)
        shaken = jax.random.normal(jax.random.fold_in(key, time), state.shape)
        return jnp.clip(drift + noise * jnp.where(exists, shaken, 0), -LOST, LOST)  # of what is lost, no overflow

    def optimal(state: Array) -> Array:
        return -jnp.einsum("nij,nj->ni", of["gain"], state)

    def warming(state: Array, time: Array) -> tuple[Array, Array]:
        return moved(state, optimal(state), time), state

    handed_over, seen = jax.lax.scan(warming, of["start"], jnp.arange(window - 1))
    seen = jnp.concatenate([seen, handed_over[None]]).swapaxes(0, 1)  # (count, window, states), the last is now

    def step(carry: tuple[Array, Array], time: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        alone, seen = carry
        state = seen[:, -1]
        codes = jnp.broadcast_to(of["code"][:, None], (*seen.shape[:2], of["code"].shape[1]))
        scaled = jnp.concatenate([seen / of["state_scale"][:, None], codes], axis=-1)
        control = predict(scaled) * of["control_scale"]
        spent = jnp.stack([_cost(alone, optimal(alone)), _cost(state, control)])
        norms = jnp.stack([jnp.linalg.norm(alone, axis=1), jnp.linalg.norm(state, axis=1)])
        after = moved(state, control, time)
        seen = jnp.concatenate([seen[:, 1:], after[:, None]], axis=1)
        return (moved(alone, optimal(alone), time), seen), (spent, norms)

    times = window + jnp.arange(steps)
    (alone, seen), (spent, norms) = jax.lax.scan(step, (handed_over, seen), times)
    final = jnp.stack([jnp.linalg.norm(alone, axis=1), jnp.linalg.norm(seen[:, -1], axis=1)])
    return jnp.sum(spent, axis=0) * dt, final, norms.swapaxes(0, 1)


def _cost(state: Array, control: Array) -> Array:
    return jnp.sum(state**2, axis=1) + CONTROL_WEIGHT * jnp.sum(control**2, axis=1)


def judged(starts: Journeys, names: list[str], travelled: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the median and the worst ratio of costs of each family, and how many families are of which grade."""
    ratio = travelled["cost"][1] / travelled["cost"][0]
    lost = travelled["norms"][1].max(axis=0) >= LOST
    ratio = np.where(lost, np.inf, ratio)
    families = {}
    for number, name in enumerate(names):
        mine = starts.family == number
        families[name] = {
            "cost_ratio": _plain(np.median(ratio[mine])),
            "worst_ratio": _plain(ratio[mine].max()),
            "lost": int(lost[mine].sum()),
            "journeys": int(mine.sum()),
            "final_norm": float(np.median(travelled["final"][1][mine])),
            "final_norm_optimal": float(np.median(travelled["final"][0][mine])),
        }
    ratios = [family["cost_ratio"] for family in families.values()]
    known = [np.inf if ratio is None else ratio for ratio in ratios]
    grades = {grade: sum(ratio < most for ratio in known) for grade, most in GRADES}
    return {
        "families": families,
        "at_least": grades,
        "grades": dict(GRADES),
        "median_cost_ratio": _plain(np.median(known)),
    }


def _plain(value: Any) -> float | None:
    """Returns None for infinity, which JSON does not have."""
    return float(value) if np.isfinite(value) else None
