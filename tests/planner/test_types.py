"""What is added up from answers of the compiler: by hand."""

import pytest

from plimsoll.planner.types import Analysis, Static

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
