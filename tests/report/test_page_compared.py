"""Several runs on one page: outcomes side by side, and only what differs of what was asked."""

import pytest

from page_examples import rows, run
from plimsoll.report.page.compared import comparison_page, names_of
from plimsoll.report.page.recorded import columns_of
from plimsoll.units import GIB, MIB
from reading_pages import text_of
from report_examples import LEDGER, PLANNED


def other(**changes):
    ledger = LEDGER | {"measured": {"peak_bytes": 900 * MIB, "phases": {}}}
    planned = PLANNED.to_dict()
    planned["plan"] |= {"remat": "none"}
    known = {
        "name": "smaller",
        "path": "/runs/smaller",
        "ledger": ledger,
        "planned": planned,
        "recipe": {"kind": "stories", "fields": {"seed": 43}},
        "columns": columns_of(rows(80)),
    }
    return run(**known | changes)


def test_the_verdict_names_who_learned_more_and_who_took_less():
    better = columns_of({**row, "validation_loss": 1.5} for row in rows(80))
    said = text_of(comparison_page([run(), other(columns=better)], footer=""))
    assert (
        "The lowest validation loss is that of smaller, 1.5000; the least memory was taken by smaller, 900.0 MiB."
        in said
    )


def test_runs_that_came_out_the_same_are_said_to():
    assert "2 runs that differ neither in memory nor in validation loss" in text_of(
        comparison_page([run()] * 2, footer="")
    )


def test_only_what_differs_is_listed():
    said = text_of(comparison_page([run(), other()], footer=""))
    assert "--seed 42 43" in said
    assert "rematerialisation block none" in said
    asked = said.partition("What was asked")[2]
    assert "loss chunk" not in asked
    assert "Nothing: recipe, plan and versions are the same." in text_of(comparison_page([run(), run()], footer=""))


def test_curves_of_all_runs_share_one_chart():
    page = comparison_page([run(), other(), other(name="third")], footer="")
    for title in ("Training loss", "Validation loss", "Resident memory", "Throughput"):
        assert f'aria-label="{title}. ' in page
    loss = page.partition('aria-label="Training loss. ')[2].partition("</svg>")[0]
    assert [name in loss for name in ("stories:", "smaller:", "third:")] == [True] * 3
    assert [f"curve {colour}" in loss for colour in ("one", "two", "three")] == [True] * 3


def test_runs_of_other_units_have_no_common_throughput():
    examples = columns_of({name.replace("tokens", "examples"): value for name, value in row.items()} for row in rows())
    assert "Throughput. " not in comparison_page([run(), other(columns=examples)], footer="")


def test_a_run_without_metrics_is_beside_the_others():
    said = text_of(comparison_page([run(), other(columns={}, ledger={})], footer=""))
    assert "training loss, last 1.0000 -" in said


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


def test_every_budget_is_a_line():
    page = comparison_page([run(), other(ledger=LEDGER | {"budget_bytes": 4 * GIB})], footer="")
    assert "a budget: 2.0 GiB" in page
    assert "a budget: 4.0 GiB" in page


def test_what_runs_are_called_is_escaped():
    page = comparison_page([run(name="<script>"), other()], footer="")
    assert "<script" not in page
