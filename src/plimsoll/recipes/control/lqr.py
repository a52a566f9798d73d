"""Optimal controllers of linear systems, and exact time steps of each system's variants under its controller.

A family's gain matrix K is computed once, for the nominal parameters, and controls every variant: `u = -K x` is held
for a step, then noise is added to each state. The matrix exponential of `[[A, B], [0, 0]] dt` is the exact effect of a
held input over a step (Van Loan 1978, https://doi.org/10.1109/TAC.1978.1101743): the state x becomes `Ad x + Bd u`.
So a step of the closed loop is one product with `Ad - Bd K`, stiff systems included.

The parameters of a variant whose closed loop is unstable are sampled again, and these draws are counted. The seed
determines everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.linalg import expm, solve_continuous_are

from plimsoll.errors import PlimsollError
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.systems import FAMILIES, Family

Matrix = np.ndarray

DRAWS = 200
"""Maximum number of draws of a variant's parameters until its closed loop is stable."""


@dataclass(frozen=True)
class System:
    """A family with its gain matrix, and the closed-loop step matrix of each variant."""

    family: Family
    gain: Float[Matrix, "inputs states"]
    steps: Float[Matrix, "variants states states"]
    redraws: int
    """Number of repeated draws of variants with an unstable closed loop."""
    parameters: tuple[dict[str, float], ...] = field(repr=False)


def gain(family: Family) -> Float[Matrix, "inputs states"]:
    """Returns K = R^-1 B' P, where P solves the Riccati equation: u = -K x minimises the integral of x'Qx + u'Ru."""
    a, b = family.matrices()
    cost, effort = np.diag(np.array(family.state_cost, float)), np.diag(np.array(family.input_cost, float))
    p = solve_continuous_are(a, b, cost, effort)
    return np.linalg.solve(effort, b.T @ p)


def held(a: Matrix, b: Matrix, dt: float) -> tuple[Matrix, Matrix]:
    """Returns the matrices of a step of `dt` seconds with a held input u: x becomes Ad x + Bd u."""
    states, inputs = b.shape
    both = np.zeros((states + inputs, states + inputs))
    both[:states, :states], both[:states, states:] = a, b
    after = expm(both * dt)
    return after[:states, :states], after[:states, states:]


def systems(options: ControlSet, *, names: Sequence[str] = tuple(FAMILIES)) -> list[System]:
    """Returns the system of each family in `names`, for a data set with these options."""
    spread = options.uncertainty
    numbers = {name: number for number, name in enumerate(FAMILIES)}
    designed = []
    for name in names:
        family, accepted, steps, sampled = FAMILIES[name], [], [], 0
        k = gain(family)
        for variant in range(options.variants_used):
            random = np.random.default_rng([options.seed, numbers[name], variant])
            for _ in range(DRAWS):
                factors = 1 + random.uniform(-spread, spread, len(family.parameters))  # gravity varies, too
                nominal = zip(family.parameters.items(), factors, strict=True)
                parameters = {parameter: value * factor for (parameter, value), factor in nominal}
                ad, bd = held(*family.matrices(parameters), options.dt)
                step = ad - bd @ k
                sampled += 1
                if np.abs(np.linalg.eigvals(step)).max() < 1:  # it is stable
                    break
            else:
                raise PlimsollError(
                    f"no variant of {name} within {spread:.0%} of its parameters is stable under the nominal"
                    f" gain, in {DRAWS} draws: lower --uncertainty"
                )
            accepted.append(parameters)
            steps.append(step)
        designed.append(System(family, k, np.stack(steps), sampled - len(steps), tuple(accepted)))
    return designed
