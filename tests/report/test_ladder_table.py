"""The golden table guards the arithmetic of a ladder; what it holds was checked by hand against `LADDER`."""

from dataclasses import replace
from pathlib import Path

from plimsoll.report.ladder import Ladder, LadderRow, ladder_table, predicted_table
from plimsoll.units import GIB, MIB

GOLDEN = Path(__file__).parent / "golden/ladder.txt"


def rung(name, words, **values):
    return LadderRow(**{"name": name, "words": words, "numerics": "exact", "outcome": "measured", **values})


LADDER = Ladder(
    recipe="stories",
    effective_batch=16,
    rate_unit="tokens",
    budget_bytes=2 * GIB,
    stops=(8, 12),
    rungs=[
        rung(
            "plain", "the whole batch at once", outcome="predicted", predicted_peak_bytes=2200 * MIB,
            state_bytes=132 * MIB, parameters=12_000_000,
        ),
        rung(
            "save", "training waits for a save", predicted_peak_bytes=2000 * MIB, measured_peak_bytes=2050 * MIB,
            state_bytes=132 * MIB, temporary_bytes=1500 * MIB, step_seconds=1.5, step_ratio=1.0, loss=8.25,
            loss_drift=0.0, per_second=2730.7, session_step_seconds=[1.5, 1.6],
        ),
        rung(
            "micro-batch", "4 examples at a time", predicted_peak_bytes=700 * MIB, measured_peak_bytes=690 * MIB,
            state_bytes=132 * MIB, temporary_bytes=300 * MIB, step_seconds=1.2, step_ratio=0.8, loss=8.25,
            loss_drift=2.5e-7, per_second=3413.3, session_step_seconds=[1.2, 1.0],
        ),
        rung(
            "bfloat16", "dots in bfloat16", numerics="mixed", predicted_peak_bytes=600 * MIB,
            outcome="failed", state_bytes=132 * MIB, why_not="killed by signal 9",
        ),
    ],
    left_out={"remat": "the recipe's loss makes no use of this lever"},
)  # fmt: skip


def test_golden_ladder_table():
    assert ladder_table(LADDER) == GOLDEN.read_text().removesuffix("\n")


def test_a_predicted_ladder_says_bytes_of_device_and_host_and_what_is_over():
    facts = {"numerics": "compressed", "source": "compiled", "outcome": "predicted", "predicted_peak_bytes": GIB}
    over = facts | {"predicted_peak_bytes": 3 * GIB, "host_bytes": GIB // 2, "step_seconds": 2.5}
    failed = facts | {"predicted_peak_bytes": None, "why_not": "no such chip"}
    rungs = [
        rung("packed", "", parameters=12_000_000, **over),
        rung("remat", "", **facts),
        rung("qlora", "", **failed),
    ]
    text = predicted_table(replace(LADDER, chip="t4", rungs=rungs))
    lines = text.splitlines()
    assert lines[0] == "ladder of stories: 12M parameters, effective batch 16, on t4"
    assert lines[3].split() == ["packed", "compressed", "3,072.0", "MiB", "-", "-", "2.5", "s", "512.0", "MiB"]
    assert text.count("over the 2.0 GiB that it may use") == 1
    assert "failed: no such chip" in text
