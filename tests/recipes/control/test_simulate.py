"""Driving in the place of the optimal controller: the optimum costs what it costs, and what is lost is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.recipes.control.lqr import systems
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.simulate import compare_costs, journeys, simulate_journeys
from plimsoll.recipes.control.systems import MOST_INPUTS, MOST_STATES
from plimsoll.recipes.control.tables import journeys_table

NAMES = ["CartPole", "MassSpringDamper", "DCMotor"]
WINDOW, STEPS, DT = 8, 100, 0.02


@pytest.fixture(scope="module")
def of():
    options = ControlSet(variants=2, uncertainty=0.1, dt=DT, seed=0)
    every = systems(options, names=NAMES)
    scales = {}
    for system in every:
        inputs, states = system.gain.shape
        scales[system.family.name] = np.arange(1.0, states + 1), np.full(inputs, 3.0)
    return journeys(every, options, variants=[1], starts=2, scales=scales, seed=0)


def drive(of, predict, noise=0.01):
    return simulate_journeys(of, predict, ControlSet(window=WINDOW, dt=DT, noise=noise), steps=STEPS, seed=0)


def optimal(of):
    def predict(inputs):
        state = inputs[:, -1, :MOST_STATES] * of.state_scale
        wanted = -jnp.einsum("nij,nj->ni", of.gain, state)
        return jnp.where(of.control_scale > 0, wanted / jnp.where(of.control_scale > 0, of.control_scale, 1), 0)

    return predict


def test_the_optimal_controller_in_its_own_place_costs_the_same(of):
    driven = drive(of, optimal(of))
    assert np.allclose(driven["cost"][0], driven["cost"][1], rtol=1e-3)
    costs = compare_costs(of, NAMES, driven)
    assert all(family["cost_ratio"] == pytest.approx(1, rel=1e-3) for family in costs["families"].values())
    assert costs["near_the_optimum"] == 3


def test_what_is_seen_is_a_window_of_scaled_states_and_doing_nothing_loses_what_falls_over(of):
    seen = []

    def nothing(inputs):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), inputs, ordered=True)
        return np.zeros((len(of.family), MOST_INPUTS), np.float32)

    costs = compare_costs(of, NAMES, drive(of, nothing, noise=0.0))
    first, second = seen[0], seen[1]
    assert first.shape == (6, WINDOW, 19)
    assert np.array_equal(first[:, 1:], second[:, :-1])  # it moves on by one
    assert np.allclose(first[:, 0, :MOST_STATES] * of.state_scale, of.start, atol=1e-6)  # warmed up from its start
    assert np.array_equal(first[:, 3, MOST_STATES:], of.code)
    assert costs["families"]["MassSpringDamper"]["lost"] == 0
    assert costs["families"]["CartPole"]["cost_ratio"] is None or costs["families"]["CartPole"]["cost_ratio"] > 5


def test_what_is_lost_is_said(of):
    pushed = np.full((len(of.family), MOST_INPUTS), 1e5, np.float32)
    hopeless = compare_costs(of, NAMES, drive(of, lambda inputs: pushed))
    assert hopeless["families"]["CartPole"]["lost"] == 2
    assert hopeless["median_cost_ratio"] is None
    text = journeys_table({**hopeless, "seconds": 3.0, "held_out": True})
    assert "2 of 2" in text
    assert "below 1.1 x 0 of 3" in text
