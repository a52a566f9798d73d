"""The page of a run and of a plan: what it says, what it must not fetch, and what is missing."""

import dataclasses
import re

import pytest
from hypothesis import given, settings

from hypotheses import examples
from page_examples import NAN, rows, run
from plimsoll.report.page.of_run import plan_page, run_page
from plimsoll.report.page.recorded import columns_of
from plimsoll.units import GIB, MIB
from reading_pages import ANY_TEXT, Seen, text_of
from report_examples import LEDGER, PLANNED


def test_the_first_thing_said_is_whether_the_line_held():
    said = text_of(run_page(run(), footer=""))
    assert "Under the budget: 1.4 GiB of 2.0 GiB at its peak, 70.3 % of the budget." in said
    assert "That is 6.2 % less than the 1.5 GiB that were predicted." in said


def test_a_run_over_its_line_says_by_how_much():
    over = LEDGER | {"measured": {"peak_bytes": 3 * GIB, "phases": {}}}
    assert "Over the budget by 1.0 GiB" in text_of(run_page(run(ledger=over), footer=""))


def test_every_component_stands_predicted_beside_measured():
    said = text_of(run_page(run(), footer=""))
    assert "process 384.0 MiB 390.0 MiB +1.6 %" in said
    assert "activations 1.0 GiB - -" in said


def test_the_plan_says_why_what_came_second_and_what_other_memory_would_buy():
    planned = PLANNED.to_dict()
    faster = planned["plan"] | {"micro_batch": 64, "accumulation": 1}
    planned["other_budgets"] = [
        {"budget_bytes": GIB, "plan": None, "predicted_peak_bytes": None, "step_ratio": None},
        {"budget_bytes": 3 * GIB, "plan": faster, "predicted_peak_bytes": 2500 * MIB, "step_ratio": 0.8},
    ]
    said = text_of(run_page(run(planned=planned), footer=""))
    assert "Chosen because it is the fastest of 12 plans that fit" in said
    assert "micro-batch 8 x 8, remat dots, loss chunk 1024, bfloat16 1.7 GiB 560 ms slower by more than 5 %" in said
    assert "1.0 GiB less (1.0 GiB): none of the plans that were compared fits." in said
    assert (
        "1.0 GiB more (3.0 GiB): micro-batch 64 x 1, remat block, loss chunk 1024, bfloat16, 25% faster (estimated),"
        " with a peak of 2.4 GiB." in said
    )


def test_the_same_plan_for_more_memory_buys_nothing():
    planned = PLANNED.to_dict()
    same = {"predicted_peak_bytes": 1536 * MIB, "step_ratio": 1.0}
    planned["other_budgets"] = [
        same | {"budget_bytes": GIB, "plan": planned["plan"] | {"prefetch": 0}},
        same | {"budget_bytes": 3 * GIB, "plan": planned["plan"] | {"pinned": []}},
    ]
    said = text_of(run_page(run(planned=planned), footer=""))
    assert "1.0 GiB less (1.0 GiB): the same step; 0 batches made ready." in said
    assert "1.0 GiB more (3.0 GiB): the same plan: more memory gains nothing." in said


def test_a_plan_of_an_older_version_says_that_it_did_not_keep_them():
    planned = PLANNED.to_dict()
    del planned["other_budgets"]
    assert "made by a version that did not keep it" in text_of(run_page(run(planned=planned), footer=""))


def test_the_plans_that_nothing_beats_are_a_chart_of_bytes_against_time():
    planned = PLANNED.to_dict()
    assert "Bytes against time" not in text_of(run_page(run(planned=planned), footer=""))
    plans = [(900 * MIB, 0.75, False), (1536 * MIB, 0.5, True), (3 * GIB, 0.4, True)]
    planned["frontier"] = [
        {"plan": {}, "needed_bytes": size, "step_seconds": seconds, "compiled": compiled, "chosen": seconds == 0.5}
        for size, seconds, compiled in plans
    ]
    for page in (run_page(run(planned=planned), footer=""), plan_page(planned, footer="")):
        assert "1 of 3 were not compiled" in text_of(page)
        said = re.search(r'aria-label="(Bytes against time[^"]*)"', page)[1]
        assert "plans that no other beats: from 3 at 400 to 0.8789 at 750" in said  # GiB at ms
        assert "the chosen plan: from 1.5 at 500" in said
        assert "budget: 2.0 GiB: 2." in said


@pytest.mark.parametrize("needed", [[], [GIB], [GIB, GIB + 1, 3 * GIB]])
def test_without_a_runner_up_it_is_not_said_that_no_other_plan_fits(needed):
    planned = PLANNED.to_dict() | {"alternatives": [], "budget_bytes": 2 * GIB}
    point = {"plan": planned["plan"], "step_seconds": 1.0, "compiled": False}
    chosen = point | {"needed_bytes": 2 * GIB, "chosen": True}
    planned["frontier"] = [chosen, *(point | {"needed_bytes": size, "chosen": False} for size in needed)]
    said = text_of(run_page(run(planned=planned), footer=""))
    fit = sum(size <= 2 * GIB for size in needed)
    assert f"{'one' if fit == 1 else fit} other" in said if fit else "other fits" not in said
    assert "No other plan that was compared fits" not in said


@pytest.mark.parametrize(("after", "changed"), [(0.5, False), (0.6, False), (3.5, True)])
def test_a_run_whose_throughput_falls_is_not_said_to_have_run_evenly(after, changed):
    """Of a run that is slow for most of its time no step takes much longer than the median."""
    slower = list(rows(40))
    for row in slower[8:]:
        row["step_seconds"] = after
    said = text_of(run_page(run(columns=columns_of(slower)), footer=""))
    assert ("it ran evenly" in said) == (not changed)
    assert ("7.0 times as long" in said) == changed
    other = list(rows(40))
    other[20]["step_seconds"] = 0.9  # no stall yet, and one row is no part of the run
    assert "it ran evenly" in text_of(run_page(run(columns=columns_of(other)), footer=""))


def test_parts_of_a_short_run_are_not_called_tenths():
    slower = list(rows(8))
    for row in slower[4:]:
        row["step_seconds"] = 1.5
    said = text_of(run_page(run(columns=columns_of(slower)), footer=""))
    assert "3.0 times as long" in said
    assert "tenth" not in said


def test_stalls_are_listed_with_their_steps():
    slow = columns_of(rows(step_seconds={17: 4.0}))
    said = text_of(run_page(run(columns=slow), footer=""))
    assert "1 of 40 rows took more than 2 times as long a step" in said
    assert "17 4.0 s" in said


def test_the_time_of_a_step_stands_beside_what_was_promised():
    assert "The plan promised 500 ms a step." in text_of(run_page(run(), footer=""))
    estimated = PLANNED.to_dict() | {"step_seconds_range": [0.4, 0.75]}
    said = text_of(run_page(run(planned=estimated), footer=""))
    assert "The plan promised 500 ms a step, as an estimate of 400 ms to 750 ms." in said


def test_waiting_for_data_comes_with_advice_only_where_it_is_much():
    much = columns_of(rows(data_seconds=dict.fromkeys(range(1, 41), 0.2)))
    assert "waited for data 40.0 % of the time of its steps. A deeper --prefetch" in text_of(
        run_page(run(columns=much), footer="")
    )
    assert "A deeper --prefetch" not in text_of(run_page(run(), footer=""))


def test_nan_is_said_and_marked():
    said = text_of(run_page(run(columns=columns_of(rows(loss={9: NAN, 30: NAN}))), footer=""))
    assert "Of training loss, 2 of 40 values are NaN or infinite, the first at 9 (optimizer step)" in said


def test_a_run_that_only_saw_nan_has_a_page():
    all_nan = columns_of({"step": step, "loss": NAN, "elapsed_seconds": NAN} for step in range(5))
    said = text_of(run_page(run(columns=all_nan, ledger={}), footer=""))
    assert "training loss, last nan" in said
    assert "Not a finite number: the training loss is in all of its 5 rows." in said


def test_a_run_without_metrics_shows_its_plan():
    said = text_of(run_page(run(columns={}, ledger={}, state="nothing saved"), footer=""))
    assert "nothing saved, no step logged" in said
    assert "No step was logged yet." in said
    assert "What each part took is measured when a session ends" in said
    assert "Chosen because" in said


def test_a_run_without_a_plan_shows_its_metrics():
    said = text_of(run_page(run(planned={}, ledger={}), footer=""))
    assert "This run has no plan yet." in said
    assert "Loss" in said


def test_the_peak_of_a_run_without_a_ledger_is_the_highest_that_was_logged():
    assert run(ledger={}).measured_peak_bytes == 310 * MIB


def test_on_an_accelerator_its_own_memory_is_held_against_the_line():
    on_device = columns_of({**row, "device_bytes": 9e8, "peak_device_bytes": 1e9} for row in rows())
    known = run(columns=on_device, ledger={})
    assert known.measured_peak_bytes == 1e9
    assert "memory of one device, as its allocator counts it" in text_of(run_page(known, footer=""))


def test_commands_versions_commit_and_seed_are_there():
    said = text_of(run_page(run(), footer="made by a test"))
    for word in ("Continues it plimsoll train stories", "--plan runs/stories/plan.json", "commit 0123abc", "seed 42",
                 "jax 0.10.2", "made by a test"):  # fmt: skip
        assert word in said


EXHIBITS = (
    {"kind": "texts", "title": "What it writes", "caption": "seeds", "items": [{"prompt": "Once", "text": " upon"}]},
    {
        "kind": "grids",
        "title": "What it solves",
        "caption": "the first",
        "items": [{"name": "test:0", "before": ["1 .", ". 2"], "after": ["1 2", "2 1"], "said": ["valid"]}],
    },
    {
        "kind": "curves",
        "title": "Loss by position",
        "caption": "falls",
        "x_label": "position",
        "y_label": "nats",
        "x": [1, 2, 4],
        "y": {"held out": [3.0, 2.0, 1.5]},
        "logarithmic": True,
    },
    {"kind": "table", "title": "Systems", "caption": "best first", "header": ["a", "b"], "rows": [["x", "0.5"]]},
    {"kind": "of a later version"},
)


def test_what_the_recipe_makes_is_shown_and_what_is_unknown_is_left_out():
    page = run_page(run(exhibits=EXHIBITS, left_out=["what it drives: no file"]), footer="")
    said = text_of(page)
    assert "Once upon" in said
    assert 'aria-label="test:0, the answer: 1 2\n2 1"' in page
    assert "Loss by position" in said
    assert "x 0.5" in said
    assert "what it drives: no file" in said


def test_the_page_asks_nothing_of_any_other_place():
    page = run_page(run(exhibits=EXHIBITS), footer="")
    assert not re.search(r"<(script|link|img|iframe|object|embed)|(src|srcset|href)=\"(?!#)|url\(|@import", page)
    assert "default-src &#x27;none&#x27;" in page


def test_charts_are_named_and_described_for_those_who_hear_them():
    tags = Seen(run_page(run(), footer="")).tags
    drawn = [dict(attributes) for tag, attributes in tags if tag == "svg"]
    assert all("aria-label" in one or one.get("aria-hidden") == "true" for one in drawn)
    named = [one["aria-label"] for one in drawn if "aria-label" in one]
    assert any(one.startswith("Loss. loss, nats over optimizer step. training loss: from 3.925 at 1") for one in named)


@pytest.mark.parametrize("label", ["resident memory, MiB", "time since the start, seconds", "optimizer step"])
def test_axes_carry_their_units(label):
    assert label in text_of(run_page(run(), footer=""))


def test_a_run_of_100_000_rows_fits_into_a_small_page():
    long = run(columns=columns_of(rows(100_000)))
    assert len(run_page(long, footer="").encode()) < 300_000


def structure(page):
    return [tag for tag, _ in Seen(page).tags]


@settings(max_examples=examples(40), deadline=None)
@given(ANY_TEXT)
def test_no_text_from_a_run_becomes_markup(said):
    """The name, notes, descriptions, metrics: whatever is in them, the page has the elements it has without."""

    def page(word):
        planned = dataclasses.replace(PLANNED, reason=word, recipe=word, left_out=(word,)).to_dict()
        exhibits = ({"kind": "texts", "title": word, "caption": word, "items": [{"prompt": word, "text": word}]},)
        ledger = LEDGER | {"notes": [word]}
        return run_page(
            run(
                name=word,
                path=word,
                planned=planned,
                ledger=ledger,
                exhibits=exhibits,
                left_out=[word],
                continue_command=word + "x",
                chosen={"prompt": word},
                recipe={"kind": word, "fields": {"seed": word}},
            ),
            footer=word,
        )

    assert structure(page(said or "x")) == structure(page("x"))


def test_the_name_of_a_script_is_shown_and_not_run():
    page = run_page(run(name="<script>alert(1)</script>"), footer="")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_plan_that_was_never_run_has_a_page():
    said = text_of(plan_page(PLANNED.to_dict(), footer=""))
    assert "A plan that was never run: it expects 1.5 GiB of 2.0 GiB, 75.0 % of the budget." in said
    assert "stories-small on cpu" in said
    assert "All of it is predicted." in said
    assert "throughput, predicted 32,768 tokens/s" in said


def test_a_long_table_stands_in_pieces_side_by_side():
    rows = [[f"system {number}", str(number)] for number in range(30)]
    long = {"kind": "table", "title": "Systems", "caption": "", "header": ["a", "b"], "rows": rows}
    page = run_page(run(exhibits=[long]), footer="").partition('aria-label="Systems"')[2].partition("</figure>")[0]
    assert page.count("<table>") == 3
    assert page.count("system ") == 30
    empty = run_page(run(exhibits=[long | {"rows": []}]), footer="")
    assert 'aria-label="Systems"' in empty
