"""The page of a run and of a plan: its words, its numbers, and that it fetches and runs nothing."""

import dataclasses
import re
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hypotheses import examples
from page_examples import GOLDEN, NAN, PAGES, html, rows, run
from plimsoll.planned import Peaks
from plimsoll.report.page.recorded import columns_of
from plimsoll.report.page.run import gradient_norms, run_page
from plimsoll.report.palette import DARK, LIGHT, SERIES
from plimsoll.report.picture import Chart, Line, inline
from plimsoll.units import GIB, MIB
from reading_pages import ANY_TEXT, Seen, lines_of, text_of
from report_examples import LEDGER, PLANNED

ALL = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def pages():
    return {name: draw() for name, draw in PAGES.items()}


@ALL
def test_golden_words(name, pages):
    assert lines_of(pages[name]) == (GOLDEN / name).read_text().splitlines()


@ALL
def test_a_page_runs_and_fetches_nothing(name, pages):
    page = pages[name]
    assert not re.search(r"<(script|link|img|iframe|object|embed)|(src|href)=\"(?!#)|url\((?!#)|@import|https?:", page)
    assert "default-src 'none'" in page


@ALL
def test_charts_are_described_and_have_the_colours_of_the_page(name, pages):
    """No text may be black on a dark page: a colour is a variable, or the page's where none is named."""
    drawn = re.findall(r"<svg[^>]*>.*?</svg>", pages[name], flags=re.DOTALL)
    assert drawn
    for svg in drawn:
        assert re.match(r'<svg viewBox="0 0 \d+ \d+" role="img" aria-label="[^"]+\.">', svg)
        assert not re.search(r"#[0-9a-f]{3,6}\b(?!\")|rgb|black", svg)
        assert "var(--one)" in svg
    assert "svg text { fill: currentColor;" in pages[name]
    assert {*re.findall(r"var\(--([a-z]+)\)", pages[name])} <= LIGHT.keys() == DARK.keys()


OVER_BUDGET = dataclasses.replace(LEDGER, measured=Peaks(peak_bytes=3 * GIB, phases={}))
CHARTS = ["Memory under the budget", "Parts of the peak", "Loss", "Learning rate", "Throughput"]


@pytest.mark.parametrize(
    ("changes", "missing", "words"),
    [
        ({}, [], "Measured peak 1.4 GiB of 2.0 GiB, 70.3 % of the budget (1.5 GiB predicted)."),
        ({"planned": None, "ledger": None}, ["Parts of the peak"], "There is none yet."),
        ({"columns": {}, "learning_rate": None}, [*CHARTS[:1], *CHARTS[2:]], "No step was logged yet."),
        ({"ledger": OVER_BUDGET}, [], "OVER THE BUDGET by 1.0 GiB"),
        (
            {"columns": columns_of({"step": 1, "loss": NAN} for _ in range(5))},
            ["Memory", "Loss", "Throughput"],
            "in 5 of",
        ),
    ],
)
def test_charts_and_words_are_there_where_their_data_are(changes, missing, words):
    page = html(run_page(run(**changes)))
    titles = [title.partition(".")[0] for title in re.findall(r'role="img" aria-label="([^"]*)"', page)]
    assert titles == [title for title in CHARTS if not title.startswith(tuple(missing))]
    assert words in text_of(page)


def test_on_an_accelerator_its_own_memory_is_compared_with_the_budget():
    on_device = columns_of({**row, "device_bytes": 9e8, "peak_device_bytes": 1e9} for row in rows())
    assert run(columns=on_device, ledger=None).measured_peak_bytes == 1e9
    assert run(ledger=None).measured_peak_bytes == 310 * MIB


def test_norms_by_layer_are_drawn_over_layers_and_other_parts_over_steps():
    parts = {f"gradient_norm/blocks/{layer}": float(layer) for layer in range(12)}
    parts |= {f"gradient_norm/{name}": float(at) for at, name in enumerate("abcdefgh")}
    logged = [{**row, **{name: norm * (1 + row["step"] // 20) for name, norm in parts.items()}} for row in rows()]
    by_layer, others = gradient_norms(run(columns=columns_of(logged)))
    assert [line.xs for line in by_layer.lines] == [[*range(12)]] * 3
    assert [line.ys[5] for line in by_layer.lines] == [5.0, 10.0, 10.0]  # median of each third; of 40 rows
    assert [line.name for line in others.lines] == list("hgfedc")
    assert "6 of 8" in others.caption
    page = html(run_page(run(columns=columns_of(logged))))
    titles = [title.partition(".")[0] for title in re.findall(r'role="img" aria-label="([^"]*)"', page)]
    assert [title for title in titles if "norm" in title.lower()] == [by_layer.title, others.title]


def test_of_norms_that_are_not_finite_or_of_one_row_nothing_is_made_up():
    columns = columns_of([{"step": 1, "gradient_norm/blocks/0": 2.0, "gradient_norm/head": NAN}])
    (chart,) = gradient_norms(run(columns=columns))
    assert chart.values == [2.0]
    assert gradient_norms(run()) == []


# Texts and numbers from outside.


def hostile(word):
    """A page with the same text in every place where a run may have one of its own."""
    planned = dataclasses.replace(PLANNED, reason=word, recipe=word, left_out=(word,))
    return run_page(
        run(
            name=word,
            path=word,
            planned=planned,
            ledger=dataclasses.replace(LEDGER, notes=(word,)),
            exhibits=({"kind": "texts", "title": word, "caption": word, "items": [{"prompt": word, "text": word}]},),
            left_out=[word],
            commands={"Continues it": word},
            chosen={"prompt": word},
            recipe={"kind": word, "fields": {"seed": word}},
            columns=columns_of({"step": step, "a" + word: 1.0} for step in range(2)),
            learning_rate=None,
        )
    ).html(footer=word)


@cache
def tags_of(word):
    return {tag for tag, _ in Seen(hostile(word)).tags}


@settings(max_examples=examples(6))
@given(ANY_TEXT)
@example("<script>alert(1)</script>")
def test_no_text_from_a_run_becomes_markup(text):
    assert tags_of(text or "x") <= tags_of("x")


@given(st.lists(st.floats(), min_size=1, max_size=6), st.booleans())
def test_whatever_a_run_has_logged_is_drawn_or_left_out(values, choice):
    line = Line(name="loss", xs=range(len(values)), ys=values)
    chart = Chart(title="", unit="", lines=[line], from_zero=choice)
    if chart.values:
        assert "<path" in inline(chart)
        assert chart.description


# Colours.

TEXT_ON = [(ink, page) for ink in ("ink", "quiet", "line", *SERIES) for page in ("page", "panel")]
"""Pairs of a text colour and its background."""


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours like `#1c5f9c`, from 1 to 21, as WCAG 2.2 defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_read(colours):
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # as the definition has it
    for ink, page in TEXT_ON:
        assert contrast(colours[ink], colours[page]) >= 4.5
