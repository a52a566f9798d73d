"""The colours can be read, in light and in dark: WCAG 2.2's ratios, computed."""

import pytest

from plimsoll.report.page.palette import DARK, DRAWN_ON, LIGHT, SERIES, TEXT_ON, contrast
from plimsoll.report.page.style import STYLE

BOTH = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])


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
