"""The systems that are simulated: the families, and variants of each with parameters a little off.

A variant whose closed loop is unstable under the nominal gain would only give trajectories that are thrown away; its
parameters are sampled again, and how often is counted. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plimsoll.errors import PlimsollError
from plimsoll.recipes.control.lqr import closed_loop, gain, radius
from plimsoll.recipes.control.systems import FAMILIES, Family

DRAWS = 200
"""Most samples of one variant's parameters."""


@dataclass(frozen=True)
class System:
    """A family with its gain, and the matrix of a closed-loop step of each variant."""

    family: Family
    gain: np.ndarray
    steps: np.ndarray
    """(variants, states, states), float64."""
    drawn_again: int
    parameters: tuple[dict[str, float], ...] = field(repr=False)


def systems(
    *, variants: int, uncertainty: float, dt: float, seed: int, names: Sequence[str] | None = None
) -> list[System]:
    """Returns a system for each family, in the order of `FAMILIES`."""
    chosen, numbers = [FAMILIES[name] for name in (names or FAMILIES)], list(FAMILIES)
    return [_system(family, numbers.index(family.name), variants, uncertainty, dt, seed) for family in chosen]


def _system(family: Family, number: int, variants: int, uncertainty: float, dt: float, seed: int) -> System:
    k, accepted, steps, sampled = gain(family), [], [], 0
    for variant in range(variants):
        random = np.random.default_rng([seed, number, variant])
        for _ in range(DRAWS):
            parameters = family.varied(random, uncertainty)
            step = closed_loop(*family.matrices(parameters), k, dt)
            sampled += 1
            if radius(step) < 1:
                break
        else:
            raise PlimsollError(
                f"of {family.name} no variant within {uncertainty:.0%} of its parameters is stable under the nominal"
                f" gain, in {DRAWS} draws: lower --uncertainty"
            )
        accepted.append(parameters)
        steps.append(step)
    return System(family, k, np.stack(steps), sampled - variants, tuple(accepted))
