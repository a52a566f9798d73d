"""Chips side by side: every row says whether it fits, how fast it is, and where its figures come from."""

import dataclasses

import pytest

from plimsoll.api.planning.compare import chips_named, prices_named
from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planned import EstimateBand
from plimsoll.report.compared import ComparedChip, compared_table
from plimsoll.units import GIB
from report_examples import PLANNED

FITS = ComparedChip(chip="h200", rate_unit="tokens", planned=PLANNED, price_per_hour=3.6)
ESTIMATED = dataclasses.replace(
    FITS,
    chip="tpu-v4-64",
    price_per_hour=None,
    planned=dataclasses.replace(
        PLANNED,
        devices=32,
        ledger=dataclasses.replace(PLANNED.ledger, source="estimated"),
        estimate_band=EstimateBand(plans=3, lowest_peak_bytes=GIB, highest_peak_bytes=3 * GIB),
    ),
)
REFUSED = ComparedChip(
    chip="rtx4090",
    rate_unit="tokens",
    why_not="no plan for stories fits in 22.6 GiB on rtx4090",
    floor_bytes=31 * GIB,
)


def cells(text, chip):
    return next(line for line in text.splitlines() if line.startswith(chip)).split("  ")


def test_a_row_says_what_fits_how_fast_and_what_is_left():
    row = [cell.strip() for cell in cells(compared_table([FITS]), "h200") if cell.strip()]
    assert row == ["h200", "yes", "500 ms", "32,768 tokens/s", "1.5 GiB", "512.0 MiB", "compiled", "3.60", "30.52"]


def test_a_price_of_many_is_that_of_the_hours_they_take():
    hours = 1e9 / (16_384 / 0.5) / 3600
    assert FITS.price_of_many == pytest.approx(3.6 * hours)
    assert ESTIMATED.price_of_many is None


def test_what_does_not_fit_says_why_and_how_much_it_takes():
    text = compared_table([FITS, REFUSED])
    assert [cell.strip() for cell in cells(text, "rtx4090") if cell.strip()][1:5] == ["no", "-", "-", "31.0 GiB"]
    assert "no plan for stories fits in 22.6 GiB on rtx4090" in text


def test_an_estimate_says_so_in_its_row_and_how_far_it_may_be_off():
    planned = dataclasses.replace(ESTIMATED.planned, step_seconds_range=(0.4, 0.75))
    text = " ".join(compared_table([dataclasses.replace(ESTIMATED, planned=planned)]).split())
    assert "512.0 MiB estimated" in text
    assert "a step of 400 ms to 750 ms" in text
    assert "its peak may lie between 1.0 GiB and 3.0 GiB" in text


@pytest.mark.parametrize(
    ("asked", "said"),
    [("", "names no chip"), (" , ", "names no chip"), ("h200,rtx4090,h200", "names h200 twice")],
)
def test_chips_that_cannot_be_compared_are_refused(asked, said):
    with pytest.raises(RecipeError, match=said):
        chips_named(asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("h200", "'h200' is no price"),
        ("h200=much", "'h200=much' is no price"),
        ("h200=-1", "is no price"),
        ("t4=1", "names 't4', which --compare does not"),
    ],
)
def test_prices_that_cannot_be_read_are_refused(asked, said):
    with pytest.raises(PlimsollError, match=said):
        prices_named(asked, ["h200", "rtx4090"])
