"""Which steps a profile traces, and what its summary counts: on traces that are written here."""

import gzip
import json
import os

import jax
import pytest

from plimsoll.training import profile
from plimsoll.training.profile import Profile, summarise


def write_trace(folder, events, *, name="a", modified=1):
    path = folder / name / "perfetto_trace.json.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    os.utime(path, (modified, modified))


def operation(name, micros):
    return {"ph": "X", "name": name, "dur": micros, "args": {"hlo_op": name}}


@pytest.fixture
def profiler(monkeypatch):
    """The steps after which JAX is told to begin and to end, in the order of the calls."""
    told = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, create_perfetto_trace: told.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: told.append("stop"))
    monkeypatch.setattr(profile, "summarise", lambda folder, *, steps: f"of {steps} steps\n\n" + "a line\n" * 20)
    return told


@pytest.mark.parametrize("steps", [1, 3])
def test_so_many_steps_are_traced_after_the_first_two(tmp_path, profiler, steps):
    traced, said = Profile(tmp_path, steps=steps), {}
    for step in range(1, 9):
        profiler.append(step)
        said[step] = traced.step_ended()
    last = 2 + steps
    assert profiler == [1, 2, "start", *range(3, last + 1), "stop", *range(last + 1, 9)]
    assert [step for step, words in said.items() if words] == [last]
    assert said[last] == f"profile: of {steps} steps; all of them in {tmp_path / 'summary.txt'}\n\n" + "\n".join(
        ["a line"] * 8
    )
    assert (tmp_path / "summary.txt").read_text().startswith(f"of {steps} steps\n")


def test_a_session_that_ends_earlier_has_a_summary_of_the_steps_there_were(tmp_path, profiler):
    traced = Profile(tmp_path, steps=9)
    for _ in range(5):
        traced.step_ended()
    words = traced.close()
    assert words.startswith("profile: of 3 steps;")
    assert profiler == ["start", "stop"]
    assert traced.close() is None


def test_the_longest_operations_of_the_newest_trace_come_first(tmp_path):
    """Microseconds as traced: 6,000 and 2,000 of 8,000 over two steps."""
    write_trace(tmp_path, [operation("old", 1)], name="before", modified=1)
    others = [
        {"ph": "M", "name": "meta", "args": {"hlo_op": "x"}}, {"ph": "X", "name": "python", "dur": 10**9},
        {"ph": "X", "name": "thread", "dur": 10**9, "args": {}},
    ]  # fmt: skip
    events = [operation("dot", 2_000), operation("sort", 2_000), operation("dot", 4_000), *others]
    write_trace(tmp_path, events, name="after", modified=2)
    first, empty, *rows = summarise(tmp_path, steps=2).splitlines()
    assert first.startswith("2 steps traced; ")
    assert empty == ""
    assert [row.split() for row in rows] == [
        ["3.00", "ms", "a", "step", "75.0%", "2x", "dot"], ["1.00", "ms", "a", "step", "25.0%", "1x", "sort"]
    ]  # fmt: skip
