"""Optimal controllers of linear systems, and their closed loops stepped exactly.

The gain is designed once, on the nominal parameters, and every variant of a family is simulated under it:
`u = -K x`, held for a step, with noise added to each state after it. Over a step of `dt` a held input acts exactly as
the matrix exponential of `[[A, B], [0, 0]] dt` says (Van Loan 1978, https://doi.org/10.1109/TAC.1978.1101743), so a
step of the closed loop is one product with `Ad - Bd K`, stiff systems included.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.linalg import expm, solve_continuous_are

from plimsoll.errors import PlimsollError
from plimsoll.recipes.control.systems import Family

Matrix = np.ndarray

LEAST_DAMPED = -1e-6
"""Largest real part, in 1/s, that a pole of an accepted closed loop may have."""


def gain(family: Family) -> Float[Matrix, "inputs states"]:
    """Returns K of `u = -K x`, which minimises the integral of x'Qx + u'Ru: K = R^-1 B' P by the Riccati equation."""
    a, b = family.matrices()
    cost, effort = np.diag(np.array(family.state_cost, float)), np.diag(np.array(family.input_cost, float))
    p = solve_continuous_are(a, b, cost, effort)
    k = np.linalg.solve(effort, b.T @ p)
    slowest = float(np.linalg.eigvals(a - b @ k).real.max())
    if not slowest < LEAST_DAMPED:
        raise PlimsollError(f"{family.name} has no stabilising gain: its slowest pole would be at {slowest:.2g} 1/s")
    return k


def held(a: Matrix, b: Matrix, dt: float) -> tuple[Matrix, Matrix]:
    """Returns Ad and Bd of one step of `dt` seconds with the input held."""
    states, inputs = b.shape
    both = np.zeros((states + inputs, states + inputs))
    both[:states, :states], both[:states, states:] = a, b
    after = expm(both * dt)
    return after[:states, :states], after[:states, states:]


def closed_loop(a: Matrix, b: Matrix, k: Matrix, dt: float) -> Float[Matrix, "states states"]:
    """Returns Ad - Bd K, by which one step multiplies the state."""
    ad, bd = held(a, b, dt)
    return ad - bd @ k


def radius(step: Matrix) -> float:
    """Returns the spectral radius: the loop settles where it is below 1."""
    return float(np.abs(np.linalg.eigvals(step)).max())
