"""`benchmarks/torture.py` for some faults, and that its judges notice what they are there to notice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.by_hand
@pytest.mark.skipif(sys.platform != "linux", reason="it watches processes through /proc and squeezes control groups")
def test_a_tortured_run_learns_what_an_undisturbed_one_does(tmp_path):
    words = f"--recipes mine --faults 10 --minutes 20 --seed 5 --out {tmp_path / 't.jsonl'}".split()
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / "torture.py"), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=1500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert sum("fault" in row for row in rows) >= 5
    assert all(row["fingerprint_same"] for row in rows if "fault" not in row)
    assert "runs lost: 0" in ended.stdout
    assert "steps silently different: 0" in ended.stdout


@pytest.fixture
def judges(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import torture_run

    return torture_run


def test_a_step_with_another_loss_is_noticed(judges):
    one = judges.Learned("digest", {1: {"loss": 1.0}, 2: {"loss": 0.5}})
    other = judges.Learned("digest", {1: {"loss": 1.0}, 2: {"loss": 0.25}})
    assert one.steps_unlike(one) == 0
    assert one.steps_unlike(other) == 1


@pytest.mark.parametrize("wrong", [{"lost": True}, {"steps_different": 1}, {"troubles": ["stuck"]}])
def test_a_run_with_any_trouble_fails_the_whole(judges, wrong):
    row = {"run": 1, "recipe": "mine", "faults": 3, "lives": 2, "lost": False, "steps_different": 0, "troubles": []}
    assert judges.sound([row])
    assert not judges.sound([row, row | wrong])
    assert not judges.sound([])
    assert "together" in judges.table([row | wrong])
