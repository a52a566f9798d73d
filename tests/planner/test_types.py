"""What is added up from answers of the compiler and from earlier runs: by hand."""

import pytest

from planner_examples import problem
from plimsoll.planner.types import Analysis, Correction, Learned, Rates, Static

STATIC = Static(
    parameters=10, parameter_bytes=1, optimizer_bytes=20, ema_bytes=300, carry_bytes=4_000, other_bytes=50_000,
    largest_leaf_bytes=0, movable={"optimizer": 7, "ema": 60, "frozen": 500},
)  # fmt: skip


def test_a_state_is_all_of_its_parts():
    assert STATIC.state_bytes == 54_321


@pytest.mark.parametrize(
    ("offload", "there"),
    [
        ("none", {}),
        ("optimizer", {"optimizer": 7, "ema": 60}),
        ("frozen", {"frozen": 500}),
        ("all", {"optimizer": 7, "ema": 60, "frozen": 500}),
    ],
)
def test_on_the_host_is_what_the_lever_names(offload, there):
    assert STATIC.on_host(offload) == there
    assert STATIC.host_bytes(offload) == sum(there.values())
    bare = Static(parameters=0, parameter_bytes=0, optimizer_bytes=0, other_bytes=0, largest_leaf_bytes=0)
    assert bare.on_host(offload) == dict.fromkeys(there, 0)
    assert bare.state_bytes == 0


@pytest.mark.parametrize(("peak", "beyond"), [(0, 120), (219, 120), (220, 120), (221, 121)])
def test_beyond_the_state_are_temporaries_and_outputs_of_their_own_or_what_the_peak_says(peak, beyond):
    """100 of temporaries and 20 of outputs that reuse no argument; arguments of 100 are part of the peak."""
    found = Analysis(argument_bytes=100, output_bytes=90, alias_bytes=70, temp_bytes=100, flops=1.0, peak_bytes=peak)
    assert found.beyond_state_bytes == beyond


def test_what_nobody_says_is_nothing():
    rates = Rates(flops={}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="")
    assert (rates.dot_seconds, rates.link_bytes, rates.host_link_bytes) == (0, 0, 0)
    analysis = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, flops=0.0)
    assert (analysis.moved_bytes, analysis.dots, analysis.peak_bytes, analysis.host_temp_bytes) == (0, 0, 0, 0)
    asked = problem(1)
    assert (asked.devices, asked.hosts, asked.layerwise, asked.measure) == (1, 1, 0, False)
    assert (asked.host_budget_bytes, asked.steps, asked.pinned_by) == (None, None, None)
    assert Learned().of("train", 1) == 0
    assert Learned().margin_bytes == 0


@pytest.mark.parametrize(
    ("more", "computed", "added"),
    [(9, 99, 9), (9, 100, 9), (9, 101, 9), (-9, 99, -9), (-9, 100, -9), (-9, 101, 0), (0, 101, 0)],
)
def test_less_is_learned_only_up_to_the_largest_prediction_that_was_seen(more, computed, added):
    learned = Learned(corrections={"load": Correction(more_bytes=more, seen_bytes=100)})
    assert learned.of("load", computed) == added
    assert learned.of("save", computed) == 0


@pytest.mark.parametrize(
    ("phase", "more", "added"),
    [("train", 9, 20), ("train", 30, 30), ("train", -9, 20), ("load", 9, 9), ("load", -9, -9), ("save", 0, 20)],
)
def test_a_margin_is_the_least_that_is_added_where_a_plan_decides(phase, more, added):
    corrections = {phase: Correction(more_bytes=more, seen_bytes=100)}
    assert Learned(corrections=corrections, margin_bytes=20).of(phase, 50) == added
