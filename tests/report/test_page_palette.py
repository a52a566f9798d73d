"""The colours can be read, in light and in dark: WCAG 2.2's ratios, computed."""

import pytest

from plimsoll.report.page.palette import DARK, LIGHT, SERIES
from plimsoll.report.page.style import STYLE

TEXT_ON = [(ink, page) for ink in ("ink", "quiet", "line", *SERIES) for page in ("page", "panel")]
"""Pairs of a text colour and its background."""
DRAWN_ON = [(ink, "page") for ink in (*SERIES, "line")]
"""Pairs of the colour of a line or bar and its background."""

BOTH = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours like `#1c5f9c`, from 1 to 21, as WCAG 2.2 defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_is_that_of_the_definition():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@BOTH
@pytest.mark.parametrize(("ink", "page"), TEXT_ON)
def test_text_can_be_read(colours, ink, page):
    assert contrast(colours[ink], colours[page]) >= 4.5


@BOTH
@pytest.mark.parametrize(("ink", "page"), DRAWN_ON)
def test_lines_and_bars_can_be_seen(colours, ink, page):
    assert contrast(colours[ink], colours[page]) >= 3


@BOTH
def test_the_line_can_be_read_where_memory_is_filled_in_below_it(colours):
    assert contrast(colours["line"], colours["faint"]) >= 3


def test_light_and_dark_have_the_same_colours_and_the_page_uses_no_other():
    assert LIGHT.keys() == DARK.keys()
    assert {*SERIES} < LIGHT.keys()
    used = {word.split(")")[0] for word in STYLE.split("var(--")[1:]}
    assert used <= LIGHT.keys()
