"""Constants of the planner that a page tells are the code's."""

from pathlib import Path

import pytest

from plimsoll.planner import estimate
from plimsoll.units import MIB

PAGE = (Path(__file__).parents[2] / "docs/memory.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("and {} MiB for library code that comes back", [estimate.RUNNING_BYTES]),
        ("| {} MiB, and the largest leaf twice |", [estimate.RESTORE_BYTES]),
        (
            "| {} MiB, or {} and twice the state if that is less |",
            [estimate.SAVING_BYTES + estimate.SLICES_BYTES, estimate.SAVING_BYTES],
        ),
        ("the peak is that of the rehearsal, and {} MiB:", [estimate.LOADING_BYTES]),
    ],
)
def test_the_page_of_memory_says_what_the_planner_charges(words, sizes):
    assert words.format(*(size // MIB for size in sizes)) in PAGE


def test_the_page_of_memory_says_what_stays_free():
    least, share = estimate.SPARE_BYTES // MIB, 100 * estimate.SPARE_SHARE
    assert f"the larger of {least} MiB and {share:g} % of the peak" in PAGE
