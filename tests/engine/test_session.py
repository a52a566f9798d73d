"""What a run writes besides its numbers: trackers and profiles, in the real training process."""

import json
import re
from dataclasses import replace

import pytest

from plimsoll.engine import session
from plimsoll.engine.options import Session
from plimsoll.engine.training_run import TrainingRun
from plimsoll.levers.registry import LEVERS
from plimsoll.units import MIB
from small_runs import STEPS, rows

STRICT = True

BREAKS_AT = 5

BAD_DAY = f"""
class Run:
    def log(self, values, step):
        if step >= {BREAKS_AT}:
            raise ConnectionError("the network is down")

    def finish(self):
        raise ConnectionError("still down")


def init(**_):
    return Run()
"""


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_that_gave_equal_runs_up_says_so(runs, deterministic, monkeypatch):
    """Every session of it: the notes are in the log and in the ledger."""
    run = TrainingRun.read(Session(run=str(runs.prepared()), budget_bytes=MIB))
    plan = run.plan.with_levers(deterministic=deterministic)
    run = replace(run, planned=replace(run.planned, plan=plan))
    monkeypatch.setattr(session, "import_everything", lambda recipe, tracker: None)
    monkeypatch.setattr(session, "load", lambda recipe, plan, options, steps: plan)
    assert session.load_executables(run) == plan
    assert any(note.startswith("--deterministic False: another run") for note in run.notes) != deterministic


@pytest.mark.slow
def test_a_run_with_wandb_offline_and_a_profile_leaves_both(runs, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'plimsoll-jax[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    run = runs.prepared()
    ended = runs.run(run, "--max-steps", "8", "--tracker", "wandb", "--profile", "3")
    assert ended.returncode == 0, ended.stderr
    (written,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert b"loss" in written.read_bytes()
    summary = (run / "profile" / "summary.txt").read_text()
    assert summary.startswith("3 steps traced")
    assert "ms a step" in summary
    said = (run / "log.txt").read_text()  # where the time went is told, too, where the run is not --quiet
    assert f"all of them in {run / 'profile/summary.txt'}" in said
    assert said.count("ms a step") == min(8, summary.count("ms a step"))
    assert list(run.glob("profile/**/*.xplane.pb"))


@pytest.mark.slow
def test_a_tracker_that_fails_is_given_up_aloud_and_the_run_goes_on(runs, monkeypatch, tmp_path):
    (tmp_path / "trackio.py").write_text(BAD_DAY)
    monkeypatch.syspath_prepend(tmp_path)
    run = runs.prepared()
    ended = runs.run(run, "--tracker", "trackio")
    assert ended.returncode == 0, ended.stderr
    said = [line for line in (run / "log.txt").read_text().splitlines() if "trackio" in line.lower()]
    assert len(said) == 1, said
    assert f"step {BREAKS_AT}" in said[0]
    assert "the network is down" in said[0]
    assert "the network is down" in ended.stderr
    assert rows(run)[-1]["step"] == STEPS


@pytest.mark.slow
def test_debug_nans_says_in_which_line_the_first_nan_is_made(runs):
    run = runs.prepared("--learning-rate", "1e10", "--warmup-steps", "0")
    ended = runs.run(run, "--learning-rate", "1e10", "--warmup-steps", "0", "--debug-nans")
    assert ended.returncode == 3
    assert len(ended.stderr.splitlines()) == 1
    assert re.search(r"error: step \d+: the first NaN is made in \w+ \(.*\.py, line \d+\): `.+`", ended.stderr)
    assert "src/plimsoll/models/decoder.py" in (run / "nan.txt").read_text()
    planned = json.loads((run / "plan.json").read_text())
    assert planned["step_options"] == {"norms": "global", "donates": False}


@pytest.mark.slow
def test_a_plan_from_a_file_is_priced_for_the_recipe_it_is_used_for(runs):
    smaller, larger = runs.prepared(), runs.prepared("--width", "384", "--heads", "2")
    plans = [json.loads((run / "plan.json").read_text()) for run in (smaller, larger)]
    assert plans[0]["plan"] | {"pinned": []} == plans[1]["plan"] | {"pinned": []}
    grown = 14 * (plans[1]["parameters"] - plans[0]["parameters"])
    assert grown > 30 * MIB
    started = plans[1]["phases"]["start"] - plans[0]["phases"]["start"]
    assert grown - 15 * MIB < started < 2 * grown + 15 * MIB, "the state, and what its initialization holds beside it"
    assert sorted(plans[1]["plan"]["pinned"]) == sorted(LEVERS)


def test_a_plan_from_a_file_and_a_lever_beside_it_contradict_each_other(runs, tmp_path):
    planned = runs.prepared() / "plan.json"
    ended = runs.run(tmp_path / "run", "--plan", str(planned), "--micro-batch", "2")
    assert ended.returncode == 2
    assert f"--micro-batch 2 and --plan {planned} with 4 contradict each other" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
