import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.errors import RunError
from plimsoll.report.metrics import LogFile, MetricsLog, NewRows, read_rows
from report_examples import SOURCES


def log_of(path, *, steps):
    log = MetricsLog(path)
    for step in steps:
        log.log(step, {"loss": step / 10})
    return log


def refuse_constants(name):
    raise AssertionError(f"{name} is not JSON")


def test_a_killed_process_leaves_every_row_it_logged(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = (
        "import os, signal, sys; from plimsoll.report.metrics import MetricsLog;"
        "log = MetricsLog(sys.argv[1]);"
        "[log.log(step, {'loss': 1.0}) for step in range(100)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=os.environ | {"PYTHONPATH": SOURCES})
    assert done.returncode == -9
    assert [row["step"] for row in read_rows(path)] == list(range(100))


def test_numbers_of_numpy_are_written_as_plain_json(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.log(np.int32(7), {"loss": np.float32(0.5), "tokens": np.int64(12), "note": None})
    assert json.loads(log.path.read_text()) == {"step": 7, "loss": 0.5, "tokens": 12, "note": None}


def test_values_that_are_not_finite_are_valid_json_and_come_back_as_they_were(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.log(3, {"loss": float("nan"), "norm": np.float32("inf"), "low": float("-inf"), "rate": 2.0})
    on_file = json.loads(log.path.read_text(), parse_constant=refuse_constants)
    assert on_file["loss"] is None
    assert on_file["not_finite"] == {"loss": "nan", "norm": "inf", "low": "-inf"}
    (row,) = read_rows(log.path)
    assert math.isnan(row["loss"])
    assert (row["norm"], row["low"], row["rate"]) == (math.inf, -math.inf, 2.0)
    assert "not_finite" not in row


@pytest.mark.parametrize(("step", "kept"), [(0, []), (1, [1]), (3, [1, 2, 3]), (4, [1, 2, 3]), (9, [1, 2, 3, 5])])
def test_cutting_removes_exactly_the_rows_after_the_step(tmp_path, step, kept):
    log = log_of(tmp_path / "metrics.jsonl", steps=[1, 2, 3, 5])
    before = log.path.read_bytes().splitlines()
    log.cut_after(step)
    assert log.path.read_bytes().splitlines() == before[: len(kept)]
    log.log(step + 1, {"loss": 0.0})
    assert [row["step"] for row in read_rows(log.path)] == [*kept, step + 1]


@pytest.mark.parametrize("torn", ['{"step": 3, "loss": 1}', "{" + "x" * 10_000])
def test_a_last_line_torn_by_a_kill_is_dropped_when_the_log_is_cut(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    log_of(path, steps=[1, 2]).close()
    with open(path, "a") as file:
        file.write(torn)  # no newline: the row was not finished, even where it happens to parse
    assert [row["step"] for row in read_rows(path)] == [1, 2]
    log = MetricsLog(path)
    log.cut_after(2)
    log.log(3, {"loss": 0.3})
    assert [row["step"] for row in read_rows(log.path)] == [1, 2, 3]


@pytest.mark.parametrize("damage", ["\0\0\0\0", "[1, 2]", '{"loss": 1}'])
def test_damage_in_the_middle_is_refused_with_its_line_number(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + damage + '\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"line 2 of .*metrics\.jsonl.*Remove that line"):
        list(read_rows(path))
    with pytest.raises(RunError, match="line 2"):
        MetricsLog(path).cut_after(1)
    assert "step" in path.read_text()


LOGGED = st.tuples(st.just("log"), st.integers(1, 3))
CUT = st.tuples(st.just("cut"), st.integers(0, 12))


@given(before=st.integers(0, 5), acts=st.lists(LOGGED | CUT | st.just(("look", 0)), max_size=12))
def test_new_rows_are_those_that_are_logged_from_now_on_whatever_is_cut(before, acts):
    with tempfile.TemporaryDirectory() as folder:
        path, numbers = Path(folder) / "metrics.jsonl", itertools.count()
        log = log_of(path, steps=range(1, before + 1)) if before else None
        rows, logged, came, step = NewRows(path), [], [], before
        for act, value in acts:
            log = log or MetricsLog(path)
            if act == "log":
                for _ in range(value):
                    step += 1
                    logged.append({"step": step, "number": next(numbers)})
                    log.log(step, {"number": logged[-1]["number"]})
            elif act == "cut":
                came += rows.read()  # a session takes seconds to begin, and rows are read ten times in each
                log.cut_after(value)
                step = min(step, value)
                came += rows.read()
            else:
                came += rows.read()
        came += rows.read()
        if log is not None:
            log.close()
        assert came == logged


def test_a_log_has_a_time_before_each_message_and_a_resumed_run_appends(tmp_path):
    for text in ("plan\n  micro-batch 4\n", "second"):
        log = LogFile(tmp_path / "log.txt", now=lambda: datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC))
        log.write(text)
        log.close()
    assert (tmp_path / "log.txt").read_text().splitlines() == [
        "2026-03-01 12:00:05Z  plan",
        "                        micro-batch 4",
        "2026-03-01 12:00:05Z  second",
    ]
