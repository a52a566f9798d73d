"""The golden files guard the arithmetic; what they hold was checked by hand against `report_examples.py`."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from page_examples import full_plan
from plimsoll.planned import Buffer, Disk, Largest, Overrun, Peaks, Planned, RunLedger, TriedValue
from plimsoll.planner.estimated import estimate_band
from plimsoll.report.layout import format_difference_share, format_rate, format_share
from plimsoll.report.tables import buffers_table, ledger_table, plan_table, runs_table
from plimsoll.units import GIB, MIB
from report_examples import LEDGER, PLANNED

GOLDEN = Path(__file__).parent / "golden"

RUNS = [
    {
        "name": "lc-1",
        "recipe": "longcontext-small-32k",
        "step": 1200,
        "steps": 20_000,
        "loss": 3.21456,
        "best_validation_loss": 3.3,
        "peak_bytes": 38 * GIB,
        "budget_bytes": 40 * GIB,
        "state": "running",
    },
    {"name": "new", "recipe": "stories", "step": 0, "steps": None, "loss": math.nan, "state": "stopped: NaN"},
]


def golden(name: str) -> str:
    return (GOLDEN / name).read_text().removesuffix("\n")


@pytest.mark.parametrize("planned", [PLANNED, full_plan()])
def test_a_plan_is_read_as_it_was_written(planned):
    assert Planned.from_dict(json.loads(json.dumps(planned.to_dict()))).to_dict() == planned.to_dict()


def test_golden_tables():
    assert plan_table(PLANNED) == golden("plan.txt")
    assert ledger_table(LEDGER) == golden("ledger.txt")
    assert runs_table(RUNS) == golden("runs.txt")


def test_golden_rates_shares_and_differences():
    assert format_rate(16_384 / 0.5, "tokens") == "32,768 tokens/s"
    assert format_rate(64 / 3, "examples") == "21.3 examples/s"
    assert format_rate(0.01234, "examples") == "0.0123 examples/s"
    assert format_share(3, 4) == "75.0 %"
    assert format_difference_share(150, 200) == "-25.0 %"
    assert format_difference_share(5, 0) == "-"  # no share of nothing


def test_the_values_that_were_tried_are_a_table_of_value_bytes_and_speed():
    """In order of the value; of one that was tried twice the last plan counts, which had all levers free."""

    def tried(value, needed, **more):
        return TriedValue(value=value, needed_bytes=needed, fits=needed is not None and needed <= 2 * GIB, **more)

    values = (
        tried(32_768, 3 * GIB, free=False),
        tried(4_096, GIB, free=True, step_seconds=0.5, per_second=8_192.0),
        tried(32_768, 2 * GIB, free=True, step_seconds=51_480.0, per_second=5.0),
        tried(32_896, None, free=True, refused="it has 32,768 positions"),
    )
    largest = Largest(
        option="seq-len",
        value=32_768,
        next_value=32_896,
        next_needed_bytes=None,
        bounded_by="recipe",
        reason="--seq-len 32,768: beyond it the recipe refuses",
        tried=values,
    )
    lines = plan_table(replace(PLANNED, largest_found=largest)).splitlines()
    at = lines.index("values that were tried, each in its smallest plan")
    words = [" ".join(line.split()) for line in lines[at + 1 : at + 5]]
    assert words == [
        "seq-len bytes a step speed",
        "4,096 1.000 GiB 500 ms 8,192 tokens/s fits",
        "32,768 2.000 GiB 14.3 h 5 tokens/s fits",
        "32,896 - - - refused",
    ]


@pytest.mark.parametrize(("seconds", "warned"), [(599.0, False), (601.0, True), (None, False)])
def test_a_step_of_more_than_ten_minutes_is_a_warning(seconds, warned):
    assert ("warning" in plan_table(replace(PLANNED, step_seconds=seconds))) is warned


def test_the_last_line_says_what_would_use_a_third_of_the_budget_or_more():
    roomy = replace(PLANNED, ledger=replace(PLANNED.ledger, budget_bytes=3 * GIB), could_grow=("batch-size", "seq-len"))
    last = plan_table(roomy).splitlines()[-2:]
    assert "1.5 GiB, 50.0 % of the budget" in last[0]
    assert "`--largest batch-size` or `--largest seq-len`" in " ".join("".join(last).split())
    for other in (
        replace(PLANNED, could_grow=roomy.could_grow),  # three quarters are used
        replace(roomy, could_grow=()),
        replace(roomy, ledger=replace(roomy.ledger, spare_bytes=GIB)),  # kept free on purpose
    ):
        assert "unused" not in plan_table(other)


def test_an_estimated_time_is_shown_with_its_range_and_an_unknown_one_without_a_rate():
    assert "/s" not in plan_table(replace(PLANNED, step_seconds=None, alternatives=()))
    text = plan_table(replace(PLANNED, step_seconds_range=(0.4, 0.75)))
    assert "500 ms (by the chip's rates, 400 ms to 750 ms): 32,768 tokens/s" in text


def test_a_ledger_over_the_budget_says_so_first_and_by_how_much():
    over = replace(LEDGER, measured=Peaks(peak_bytes=2 * GIB + 5 * MIB, phases={}))
    assert ledger_table(over).startswith("OVER THE BUDGET by 5.0 MiB: measured peak 2.0 GiB of 2.0 GiB, 100.2 %")


def test_a_ledger_that_nobody_measured_has_no_measured_numbers():
    text = ledger_table(RunLedger.of_plan(PLANNED))
    assert text.startswith("peak not measured yet; budget 2.0 GiB")
    assert "+" not in text
    assert "resumed" not in text


def test_golden_buffers_table():
    buffers = (
        Buffer(bytes=8 * MIB, shape="float32[512,4096]", what="exp", place="plimsoll/levers/chunked_loss.py:28"),
        Buffer(bytes=640 * 1024, shape="float32[512,320]", what="copy", place=""),
    )
    assert buffers_table(replace(PLANNED, largest_buffers=buffers)).lines()[1:] == [
        "    8.0 MiB  float32[512,4096]  exp        plimsoll/levers/chunked_loss.py:28",
        "  640.0 KiB  float32[512,320]   copy       -",
    ]
    assert "plimsoll chips --install" in buffers_table(PLANNED).title


def test_an_estimated_plan_says_how_far_such_estimates_were_from_the_compilers():
    predicted = {"parameters": 512 * MIB, "step temporaries": 1024 * MIB}
    ledger = replace(PLANNED.ledger, source="estimated", components=predicted)
    band = estimate_band(ledger)
    peaks = {
        "lowest_peak_bytes": 1_257_503_009,
        "highest_peak_bytes": 1_771_056_917,
    }  # 512 MiB and 1 GiB / 1.49, / 0.87
    assert vars(band) == {"plans": 21} | peaks
    text = " ".join(plan_table(replace(PLANNED, ledger=ledger, estimate_band=band)).split())
    assert "a peak from 1.2 GiB to 1.6 GiB, by 21 plans that were also compiled" in text


def test_a_margin_the_disk_and_overruns_stand_in_the_tables():
    disk = Disk(checkpoint_bytes=3 * MIB, kept_at_once=4, bytes=12 * MIB)
    text = plan_table(replace(PLANNED, margin_bytes=40 * MIB, disk=disk))
    assert "margin              40.0 MiB" in text
    assert "disk                12.0 MiB for 4 checkpoints of 3.0 MiB at once" in text
    overrun = Overrun(step=1200, what="resident set", budget_bytes=2 * GIB, predicted_bytes=GIB, measured_bytes=3 * GIB)
    text = ledger_table(replace(LEDGER, overruns=(overrun,)))
    assert "over budget         at step 1,200: the resident set reached 3.0 GiB" in text
