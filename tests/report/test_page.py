"""The page of a run, of a plan and of several runs: its words, its numbers, and that it fetches and runs nothing."""

import dataclasses
import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from page_examples import EXHIBITS, GOLDEN, NAN, PAGES, full_plan, other, rows, run
from plimsoll.report.page.chart import STRETCHES, Chart, Line, thinned
from plimsoll.report.page.compared import comparison_page, names_of
from plimsoll.report.page.palette import DARK, LIGHT, SERIES
from plimsoll.report.page.plans import plan_page
from plimsoll.report.page.recorded import columns_of
from plimsoll.report.page.runs import run_page
from plimsoll.units import GIB, MIB, format_bytes
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
def test_a_page_is_the_same_bytes_twice(name, pages):
    assert PAGES[name]() == pages[name]


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


def test_every_number_of_the_ledger_is_on_the_page(pages):
    words = text_of(pages["page-run.txt"])
    for name, sizes in LEDGER["components"].items():
        measured = format_bytes(sizes["measured"]) if sizes["measured"] else "-"
        assert f"{name} {format_bytes(sizes['predicted'])} {measured}" in words
    for peak in (LEDGER["predicted"]["peak_bytes"], LEDGER["measured"]["peak_bytes"], LEDGER["budget_bytes"]):
        assert format_bytes(peak) in words


HEADINGS = ["The line", "What it learned", "What it makes", "How fast", "The plan", "Again"]


@pytest.mark.parametrize(
    ("changes", "missing", "words"),
    [
        ({"exhibits": EXHIBITS}, [], "What it solves"),
        ({}, ["What it makes"], "Under the budget: 1.4 GiB of 2.0 GiB at its peak, 70.3 % of the budget."),
        ({"left_out": ["what it drives: no file"]}, [], "what it drives: no file"),
        ({"planned": {}, "ledger": {}}, ["What it makes"], "This run has no plan yet."),
        ({"columns": {}, "ledger": {}}, ["What it makes"], "What each part took is measured when a session ends"),
        ({"columns": {}, "learning_rate": None}, ["What it makes"], "No step was logged yet."),
        ({"ledger": LEDGER | {"measured": {"peak_bytes": 3 * GIB}}}, ["What it makes"], "Over the budget by 1.0 GiB"),
    ],
)
def test_a_section_is_there_where_its_data_are(changes, missing, words):
    page = run_page(run(**changes), footer="")
    assert re.findall(r"<h2>(.*?)</h2>", page) == [heading for heading in HEADINGS if heading not in missing]
    assert words in text_of(page)


def test_charts_are_there_where_their_data_are():
    def titles(**changes):
        page = run_page(run(**changes), footer="")
        return [svg.partition(".")[0] for svg in re.findall(r'role="img" aria-label="([^"]*)"', page)]

    usual = ["Memory under the budget", "Loss", "Learning rate", "Throughput"]
    assert titles() == usual
    assert titles(columns={}, learning_rate=None) == []
    assert titles(planned=full_plan()) == [*usual, "Bytes against time"]
    never_finite = columns_of({"step": step, "loss": NAN, "accuracy": 0.5} for step in range(5))
    assert titles(columns=never_finite) == ["Learning rate", "Accuracy"]


def test_on_an_accelerator_its_own_memory_is_compared_with_the_budget():
    on_device = columns_of({**row, "device_bytes": 9e8, "peak_device_bytes": 1e9} for row in rows())
    recorded = run(columns=on_device, ledger={})
    assert recorded.measured_peak_bytes == 1e9
    assert "memory of one device, as its allocator counts it" in text_of(run_page(recorded, footer=""))
    assert run(ledger={}).measured_peak_bytes == 310 * MIB


@pytest.mark.parametrize(("seconds", "changed"), [(0.5, False), (0.6, False), (3.5, True)])
def test_a_run_whose_throughput_falls_did_not_run_evenly(seconds, changed):
    """Of a run that is slow for most of its time no step takes much longer than the median."""
    slower = list(rows(40))
    for row in slower[8:]:
        row["step_seconds"] = seconds
    words = text_of(run_page(run(columns=columns_of(slower)), footer=""))
    assert ("it ran evenly" in words) == (not changed)
    assert ("7.0 times as long" in words) == changed


def test_waiting_for_data_comes_with_advice_only_where_it_is_much():
    waiting = run(columns=columns_of(rows(data_seconds=dict.fromkeys(range(1, 41), 0.2))))
    words = "waited for data 40.0 % of the time of its steps. A deeper --prefetch"
    assert words in text_of(run_page(waiting, footer=""))
    assert "A deeper --prefetch" not in text_of(run_page(run(), footer=""))


@pytest.mark.parametrize("needed", [[], [GIB], [GIB, GIB + 1, 3 * GIB]])
def test_plans_that_fit_are_counted_where_there_is_no_runner_up(needed):
    planned = PLANNED.to_dict() | {"alternatives": [], "budget_bytes": 2 * GIB}
    point = {"plan": planned["plan"], "step_seconds": 1.0, "compiled": False}
    chosen = point | {"needed_bytes": 2 * GIB, "chosen": True}
    planned["frontier"] = [chosen, *(point | {"needed_bytes": size, "chosen": False} for size in needed)]
    words = text_of(plan_page(planned, footer=""))
    fit = sum(size <= 2 * GIB for size in needed)
    assert (f"{'one' if fit == 1 else fit} other" in words) == bool(fit)


# Several runs.


def test_only_what_differs_is_listed():
    asked = text_of(comparison_page([run(), other()], footer="")).partition("What was asked")[2]
    assert "--seed 42 43" in asked
    assert "loss chunk" not in asked
    alike = text_of(comparison_page([run()] * 2, footer=""))
    assert "Nothing: recipe, plan and versions are the same." in alike
    assert "2 runs that differ neither in memory nor in validation loss" in alike


def test_curves_of_all_runs_share_one_chart():
    page = comparison_page([run(), other(), other(name="third", ledger=LEDGER | {"budget_bytes": 4 * GIB})], footer="")
    loss = page.partition('aria-label="Training loss. ')[2].partition("</svg>")[0]
    for name, colour in zip(("stories", "smaller", "third"), SERIES, strict=False):
        assert f"{name}: from" in loss
        assert f"var(--{colour})" in loss
    assert {"a budget: 2.0 GiB", "a budget: 4.0 GiB"} < {*re.findall("a budget: [0-9.]+ GiB", page)} | {""}


def test_a_run_without_metrics_and_one_of_other_units_stand_beside_the_others():
    examples = columns_of({name.replace("tokens", "examples"): value for name, value in row.items()} for row in rows())
    page = comparison_page([run(), other(columns=examples), other(name="empty", columns={}, ledger={})], footer="")
    assert "Throughput. " not in page
    assert "training loss, last 1.0000 1.0000 -" in text_of(page)


@pytest.mark.parametrize(
    ("names", "paths", "expected"),
    [
        (["a", "b"], ["/x/a", "/x/b"], ["a", "b"]),
        (["a", "a"], ["/x/a", "/y/a"], ["/x/a", "/y/a"]),
        (["a", "a"], ["/x/a", "/x/a"], ["a (1)", "a (2)"]),
    ],
)
def test_names_tell_runs_apart(names, paths, expected):
    assert names_of([run(name=name, path=path) for name, path in zip(names, paths, strict=True)]) == expected


# Texts and numbers from outside.


def hostile(word):
    """A page with the same text in every place where a run may have one of its own."""
    planned = dataclasses.replace(PLANNED, reason=word, recipe=word, left_out=(word,)).to_dict()
    return run_page(
        run(
            name=word,
            path=word,
            planned=planned,
            ledger=LEDGER | {"notes": [word]},
            exhibits=({"kind": "texts", "title": word, "caption": word, "items": [{"prompt": word, "text": word}]},),
            left_out=[word],
            continue_command=word + "x",
            chosen={"prompt": word},
            recipe={"kind": word, "fields": {"seed": word}},
            columns=columns_of({"step": step, "a" + word: 1.0} for step in range(2)),
            learning_rate=None,
        ),
        footer=word,
    )


EXPECTED = [tag for tag, _ in Seen(hostile("x")).tags]


@settings(max_examples=examples(20), deadline=None)
@given(ANY_TEXT)
def test_no_text_from_a_run_becomes_markup(text):
    assert [tag for tag, _ in Seen(hostile(text or "x")).tags] == EXPECTED


def test_the_name_of_a_script_is_shown_and_not_run():
    for page in (hostile("<script>alert(1)</script>"), comparison_page([run(name="<script>"), other()], footer="")):
        assert "<script" not in page
        assert "&lt;script&gt;" in page


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=6), st.booleans())
def test_whatever_a_run_has_logged_is_drawn_or_left_out(values, choice):
    line = Line(name="loss", xs=range(len(values)), ys=values)
    chart = Chart(
        title="", caption="", y_label="", lines=[line], may_be_logarithmic=choice, from_zero=not choice, is_filled=True
    )
    if not chart.is_empty:
        assert "<path" in chart.drawing()
        assert chart.description


def test_a_long_line_keeps_its_extremes_its_ends_and_its_gaps():
    values = [1.0] * 100_000
    values[54_321], values[77_777], values[90_000] = 9.0, -9.0, math.inf
    xs, ys = thinned(Line(name="loss", xs=range(100_000), ys=values))
    points = dict(zip(xs, ys, strict=True))
    assert (points[54_321], points[77_777], points[0], points[99_999]) == (9.0, -9.0, 1.0, 1.0)
    assert math.isnan(points[90_000])
    assert len(xs) <= 2 * STRETCHES + 3
    assert all(before < after for before, after in pairwise(xs))


def test_a_run_of_100_000_rows_fits_into_a_small_page():
    lost = dict.fromkeys((9, 30), NAN)
    page = run_page(run(columns=columns_of(rows(100_000, loss=lost))), footer="")
    assert len(page.encode()) < 300_000
    assert "Of training loss, 2 of 100,000 values are NaN or infinite, the first at 9 (optimizer step)" in text_of(page)


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
    assert contrast(colours["line"], colours["faint"]) >= 3


def test_light_and_dark_have_the_same_colours_and_the_page_uses_no_other(pages):
    assert LIGHT.keys() == DARK.keys()
    for page in pages.values():
        assert {*re.findall(r"var\(--([a-z]+)\)", page)} <= LIGHT.keys()
