"""What a run writes besides its numbers: trackers and profiles, in the real training process."""

import pytest
from small_runs import STEPS, rows

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


def test_a_run_with_wandb_offline_and_a_profile_leaves_both(runs, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'plimsoll[wandb]'")
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
    assert list(run.glob("profile/**/*.xplane.pb"))


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
