"""benchmarks/device.py: parts by worth, within a time, each recorded; and the whole of it on a CPU, at toy sizes."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plimsoll.levers import frozen
from plimsoll.levers.offload import on_host

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


def module(path, monkeypatch):
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, loaded)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def device(monkeypatch):
    return module(BENCHMARKS / "device.py", monkeypatch)


def given(device, tmp_path, *, left=60.0, toy=True):
    return device.Given(None, tmp_path, sys.executable, toy, time.monotonic() + left, tmp_path)


def test_a_part_that_fails_is_recorded_with_its_reason(device, tmp_path):
    def refused(given):
        return given.run([sys.executable, "-c", "import sys; sys.exit('there is no such card')"])

    answer = device.answered(device.Part("a", 1.0, refused), given(device, tmp_path))
    assert answer["failed"] == "there is no such card"
    broken = device.answered(device.Part("b", 1.0, lambda given: {}["missing"]), given(device, tmp_path))
    assert broken["failed"] == "KeyError: 'missing'"
    assert device.line(broken) == "failed: KeyError: 'missing'"


def test_a_part_for_which_no_time_is_left_is_left_out(device, tmp_path):
    part = device.Part("long", 150.0, lambda given: {"ran": 1})
    assert "about 150" in device.answered(part, given(device, tmp_path, toy=False))["left_out"]
    assert device.answered(part, given(device, tmp_path, left=200.0, toy=False))["result"] == {"ran": 1}


def test_a_command_that_takes_longer_than_what_is_left_is_stopped(device, tmp_path):
    here = given(device, tmp_path, left=1.0)
    with pytest.raises(device.Failed, match="took longer than 1 s"):
        here.run([sys.executable, "-c", "import time; time.sleep(30)"])


@pytest.mark.parametrize("apart", [1.0, float("inf"), float("nan")])
def test_a_card_that_computes_something_else_with_parts_on_the_host_fails(device, tmp_path, monkeypatch, apart):
    distances = {
        "offload frozen": {"distance": 1e-7, "leaf": "loss"},
        "remat offload": {"distance": apart, "leaf": "mu"},
    }
    answers = iter(
        [
            {"limit": 1e-3, "distances": distances},
            {"limit": 2.0, "distances": {**distances, "remat offload": {"distance": 1.0, "leaf": "mu"}}},
        ]
    )
    monkeypatch.setattr(device.Given, "run", lambda given, command: "a warning\n" + json.dumps(next(answers)))
    parts = {part.name: part for part in device.parts(toy=False)}
    answer = device.answered(parts["offload"], given(device, tmp_path, left=300.0, toy=False))
    assert "remat offload by" in answer["failed"]
    assert "offload frozen" not in answer["failed"]
    answer = device.answered(parts["offload"], given(device, tmp_path, left=300.0, toy=False))
    assert (answer["result"]["equal"], answer["result"]["largest distance"]) == (True, 1.0)


@pytest.mark.slow
def test_what_is_compared_on_a_card_finds_a_fetch_of_other_rows_and_nothing_else(monkeypatch):
    """On a CPU, where the host's memory is a kind of its own to JAX."""
    parity = module(BENCHMARKS / "offload_parity.py", monkeypatch)
    recipe = parity.frozen_layers(width=128, layers=4)
    values = {"remat offload", "offload optimizer", "offload frozen", "offload all"}
    distances = parity.compared(recipe)
    assert distances.keys() == values
    assert all(found["distance"] < parity.LIMIT for found in distances.values())

    fetched = frozen.fetched
    monkeypatch.setattr(frozen, "fetched", lambda x: fetched(x)[::-1] if on_host(x) else x)
    distances = parity.compared(recipe)
    assert {name for name in values if distances[name]["distance"] > 0.1} == {"offload frozen", "offload all"}


@pytest.mark.by_hand
def test_it_runs_to_its_end_on_a_cpu(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "device.py"), "--minutes", "8", "--chip", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "device.json").read_text())
    parts = result["parts"]
    without = {name: part["failed"] for name, part in parts.items() if "result" not in part}
    assert without.keys() == {"torch.compile, 97.5M"}, without
    assert "torch" in without["torch.compile, 97.5M"]
    assert parts["exact"]["result"]["equal"]
    assert parts["exact"]["result"]["killed_before_its_end"]
    trained = [part["result"] for part in parts.values() if "predicted_bytes" in part.get("result", {})]
    assert len(trained) >= 6  # small, two precisions, puzzles, longcontext, own
    for run in trained:
        assert 0 < run["measured_bytes"] <= run["budget_bytes"]
        assert run["step_seconds"]["measured"] > 0
