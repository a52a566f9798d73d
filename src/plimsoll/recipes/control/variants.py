"""Every system that is simulated: the families, and variants of each with parameters a little off.

A variant whose closed loop is unstable under the nominal gain would only give trajectories that are thrown away; its
parameters are drawn again, and how often that was is counted. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plimsoll.errors import PlimsollError
from plimsoll.recipes.control.lqr import closed_loop, gain, radius
from plimsoll.recipes.control.systems import FAMILIES, Family

DRAWS = 200
"""Of one variant, at most."""


@dataclass(frozen=True)
class System:
    """A family with its gain, and of each variant the matrix of a closed-loop step."""

    family: Family
    gain: np.ndarray
    steps: np.ndarray
    """(variants, states, states), float64."""
    drawn_again: int
    parameters: tuple[dict[str, float], ...] = field(repr=False)


def systems(
    *, variants: int, uncertainty: float, dt: float, seed: int, names: Sequence[str] | None = None
) -> list[System]:
    """One for each family, in the order of `FAMILIES`."""
    chosen = [FAMILIES[name] for name in (names or FAMILIES)]
    return [_system(family, variants, uncertainty, dt, seed) for family in chosen]


def _system(family: Family, variants: int, uncertainty: float, dt: float, seed: int) -> System:
    k, found, steps = gain(family), [], []
    drawn = 0
    for variant in range(variants):
        random = np.random.default_rng([seed, _number(family), variant])
        for _ in range(DRAWS):
            parameters = family.varied(random, uncertainty)
            step = closed_loop(*family.matrices(parameters), k, dt)
            drawn += 1
            if radius(step) < 1:
                break
        else:
            raise PlimsollError(
                f"of {family.name} no variant within {uncertainty:.0%} of its parameters is stable under the nominal"
                f" gain, in {DRAWS} draws: lower --uncertainty"
            )
        found.append(parameters)
        steps.append(step)
    return System(family, k, np.stack(steps), drawn - variants, tuple(found))


def _number(family: Family) -> int:
    return list(FAMILIES).index(family.name)
