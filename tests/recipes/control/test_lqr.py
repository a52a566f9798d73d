"""Gains, poles and closed loops of the thirty-five systems, against reference numbers and the equations themselves."""

import json

import numpy as np
import pytest

from plimsoll.recipes.control.lqr import gain, held, systems
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.systems import FAMILIES

DT = 0.02
EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


@pytest.fixture(scope="module")
def checks(shared):
    rows = json.loads((shared / "golden/lqr_checks.json").read_text())
    return {row["name"]: row for row in rows}


def radius(step):
    return np.abs(np.linalg.eigvals(step)).max()


@EVERY
def test_the_gain_stabilises_and_no_other_nearby_costs_less(family):
    """The cost x' P x of a gain is the solution of a Lyapunov equation; the optimal gain's is the least."""
    from scipy.linalg import solve_continuous_lyapunov

    a, b = family.matrices()
    q, r = np.diag(np.array(family.state_cost, float)), np.diag(np.array(family.input_cost, float))

    def cost(k):
        closed = a - b @ k
        return np.trace(solve_continuous_lyapunov(closed.T, -(q + k.T @ r @ k)))

    k, random = gain(family), np.random.default_rng(0)
    assert np.linalg.eigvals(a - b @ k).real.max() < -1e-6
    best = cost(k)
    for _ in range(5):
        other = k + 1e-3 * np.abs(k).max() * random.standard_normal(k.shape)
        if np.linalg.eigvals(a - b @ other).real.max() < 0:
            assert cost(other) >= best * (1 - 1e-9)


@EVERY
def test_golden_gains_poles_and_steps_of_the_closed_loop(family, checks):
    one = checks[family.name]
    a, b = family.matrices()
    k = gain(family)
    assert checks.keys() == FAMILIES.keys()
    assert (one["n"], one["m"]) == (family.states, family.inputs) == (len(family.box), b.shape[1])
    assert np.linalg.eigvals(a).real.max() == pytest.approx(one["ol"], rel=1e-6, abs=1e-6)
    poles = np.linalg.eigvals(a - b @ k)
    assert poles.real.max() == pytest.approx(one["cl"], rel=1e-5)
    assert np.abs(poles).max() == pytest.approx(one["clmax"], rel=1e-5)
    assert np.abs(k).max() == pytest.approx(one["Kmax"], rel=1e-5)
    assert np.allclose(k, one["K"], atol=6e-5 + 1e-5 * one["Kmax"])
    [step] = systems(ControlSet(variants=1, uncertainty=0.0, dt=DT), names=[family.name])[0].steps
    assert radius(step) == pytest.approx(one["rho"], rel=1e-6)
    assert radius(step) < 1


def test_a_held_input_acts_as_the_integral_says_and_many_small_steps_are_a_large_one():
    """A double integrator under a constant push: x = t^2 / 2, v = t."""
    ad, bd = held(*FAMILIES["DoubleIntegrator"].matrices(), 0.5)
    assert np.allclose(ad, [[1, 0.5], [0, 1]])
    assert np.allclose(bd.ravel(), [0.125, 0.5])
    a, b = FAMILIES["FlexibleBeam"].matrices()  # stiff: Runge-Kutta with this step runs away
    small, _ = held(a, b, DT / 8)
    assert np.allclose(np.linalg.matrix_power(small, 8), held(a, b, DT)[0], atol=1e-12)


def test_every_variant_is_stable_and_follows_from_the_seed():

    def chosen(**options):
        return systems(ControlSet(variants=6, dt=DT, **options), names=["Acrobot", "CartPole"])

    first = chosen(uncertainty=0.2, seed=3)
    assert all(radius(step) < 1 for system in first for step in system.steps)
    assert first[0].redraws > 0  # a quarter of its variants are not
    again = chosen(uncertainty=0.2, seed=3)
    other = chosen(uncertainty=0.2, seed=4)
    assert all(np.array_equal(one.steps, two.steps) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first[1].steps, other[1].steps)
    nominal = chosen(uncertainty=0.0, seed=3)[1]
    ad, bd = held(*FAMILIES["CartPole"].matrices(), DT)
    assert np.allclose(nominal.steps, ad - bd @ nominal.gain)
