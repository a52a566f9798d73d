"""What pages tell of the code is the code's: constants of the planner, shapes of models, what commands print."""

from pathlib import Path
from typing import get_args

import pytest

from plimsoll.errors import RecipeError
from plimsoll.models.sizing import sized
from plimsoll.optimizers.settings import Decay
from plimsoll.planner.bytes import (
    COMPILING,
    FILED,
    PREDICTED,
    READING,
    RESTORE_BYTES,
    RUNNING_BYTES,
    SAVING_BYTES,
    TRIED,
)
from plimsoll.planner.estimated import ON_ONE_DEVICE, ON_SEVERAL
from plimsoll.planner.speed import CHUNKED_OVER_MEASURED, ESTIMATED_OVER_MEASURED, RATED_OVER_MEASURED
from plimsoll.units import KIB, MIB, format_count
from small_tasks import parameters_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "memory.md").read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [
        f" {FILED.least_bytes // MIB} MiB and {FILED.instruction_bytes / KIB:g} KiB for each instruction",
        f": {READING.least_bytes // MIB} MiB and {READING.instruction_bytes / KIB:g} KiB for each instruction",
        f"and {RUNNING_BYTES // MIB} MiB that steps add",
        f"| `save buffers` | {SAVING_BYTES // MIB} MiB |",
        f"| {RESTORE_BYTES // MIB} MiB, and the largest leaf twice |",
        *(f"P + {each.least_bytes // MIB} MiB and P / {each.largest_share}" for each in (PREDICTED, TRIED)),
    ],
)
def test_the_page_of_memory_says_what_the_planner_charges(words):
    assert words in PAGE


def test_the_page_of_scale_says_what_compiling_takes():
    words = f"{COMPILING.least_bytes // MIB} MiB and {COMPILING.instruction_bytes / KIB:g} KiB for each instruction"
    assert words in (DOCS / "scale.md").read_text("utf-8")


@pytest.mark.parametrize(("plans", "ratios"), [ON_ONE_DEVICE, ON_SEVERAL])
def test_the_page_of_chips_says_how_far_estimated_bytes_are(plans, ratios):
    least, most = ratios
    words = f"between {1 - 1 / most:.0%} less and {1 / least - 1:.0%} more, in {plans} plans".replace("%", " %")
    assert words in (DOCS / "chips.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("least", "most"),
    [
        ESTIMATED_OVER_MEASURED,
        (CHUNKED_OVER_MEASURED, ESTIMATED_OVER_MEASURED[1]),
        RATED_OVER_MEASURED,
    ],
)
def test_the_page_of_chips_says_how_far_estimated_seconds_are(least, most):
    assert f" {round(1 / most, 2):g} to {round(1 / least, 2):g} " in (DOCS / "chips.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("target", "vocabulary"), [(500_000, 4096), (10**6, 4096), (5 * 10**6, 4096), (25 * 10**6, 32768), (10**8, 32768)]
)
def test_the_page_of_stories_says_which_shape_a_size_has(target, vocabulary):
    shape = sized(target, vocab=vocabulary)
    numbers = (vocabulary, shape.width, shape.layers, shape.heads, shape.inner, parameters_of(shape))
    row = " | ".join([format_count(target), *(f"{number:,}" for number in numbers)])
    assert f"| {row} |" in (DOCS / "stories.md").read_text("utf-8")


def test_the_page_of_the_guides_says_how_a_size_without_a_shape_is_refused():
    with pytest.raises(RecipeError) as refusal:
        sized(1_000_000, vocab=10_000)
    assert f"`{refusal.value}`" in (DOCS / "guide-tinystories.md").read_text("utf-8")


def test_the_page_of_optimizers_has_a_row_for_every_decay():
    page = (DOCS / "optimizers.md").read_text("utf-8")
    assert [decay for decay in get_args(Decay) if f"\n| `{decay}` | " not in page] == []
