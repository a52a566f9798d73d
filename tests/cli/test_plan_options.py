"""`plan --within`, `--floor` and `--frontier` reach the search, and what it found is printed."""

import json
from dataclasses import replace

import pytest

from commands import TINY, plimsoll
from planner_examples import STATIC
from plimsoll.api.planning import find
from plimsoll.cli.main import main
from plimsoll.planned import Point
from plimsoll.units import GIB, MIB
from report_examples import PLAN, PLANNED

POINTS = (
    Point(plan=PLAN.with_levers(micro_batch=8), needed_bytes=900 * MIB, step_seconds=0.75, compiled=False),
    Point(plan=PLAN, needed_bytes=1600 * MIB, step_seconds=0.5, compiled=True, chosen=True),
    Point(plan=PLAN.with_levers(remat="none"), needed_bytes=3 * GIB, step_seconds=0.4, compiled=True),
)


@pytest.fixture
def asked(monkeypatch):
    """How the search was asked."""
    found = {}

    def looked_for(*, smallest):
        def plan_of(problem, desk):
            found.update(within=desk.deadline.seconds, smallest=smallest)
            return replace(PLANNED, frontier=POINTS)

        return plan_of

    monkeypatch.setattr(find.search, "find_fastest", looked_for(smallest=False))
    monkeypatch.setattr(find.search, "find_smallest", looked_for(smallest=True))
    monkeypatch.setattr(find.SpokenPool, "static", lambda self: STATIC)
    return found


def test_the_time_of_planning_is_the_chips_unless_it_is_given(asked):
    assert main(["plan", "stories", "--chip", "cpu"]) == 0
    assert (asked["within"], asked["smallest"]) == (30.0, False)
    assert main(["plan", "stories", "--chip", "tpu-v5e-8"]) == 0
    assert asked["within"] == 60.0
    assert main(["plan", "stories", "--chip", "cpu", "--within", "2min", "--floor"]) == 0
    assert (asked["within"], asked["smallest"]) == (120.0, True)


def test_the_frontier_is_printed_where_it_is_asked_for(asked, capsys):
    main(["plan", "stories", "--chip", "cpu"])
    assert "no other plan beats" not in capsys.readouterr().out
    main(["plan", "stories", "--chip", "cpu", "--frontier"])
    said = capsys.readouterr().out.splitlines()
    table = said[said.index("budget and step time of each plan that no other plan beats in both") :]
    words = [
        ("900.0 MiB", "estimated"),
        ("1.6 GiB", "chosen"),
        ("3.0 GiB", "remat none"),
    ]
    assert all(size in line and word in line for (size, word), line in zip(words, table[2:], strict=True))
    main(["plan", "stories", "--chip", "cpu", "--json"])
    told = json.loads(capsys.readouterr().out)["frontier"]
    assert [point["needed_bytes"] for point in told] == [point.needed_bytes for point in POINTS]
    assert [point["chosen"] for point in told] == [False, True, False]


@pytest.mark.by_hand  # six steps are compiled, each in a process of its own
def test_the_largest_length_is_confirmed_by_the_compiler(text_file):
    words = ["plan", "stories", "--dataset-id", text_file, *TINY, "--chip", "cpu", "--memory", "420MiB"]
    at = words.index("--seq-len")
    without = words[:at] + words[at + 2 :]
    done = plimsoll(*without, "--largest", "seq-len", "--within", "5min", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    search = answer["largest_search"]
    assert search["bounded_by"] == "bytes"
    assert answer["predicted_peak_bytes"] + answer["spare_bytes"] <= 420 * MIB < search["next_needed_bytes"]
    assert search["next_value"] == answer["largest"] + 128
    last = [each for each in search["tried"] if each["value"] == search["next_value"] and each["free"]]
    assert [each["fits"] for each in last] == [False]
