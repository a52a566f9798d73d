"""A signal while the held-out set is evaluated, in the real process: that step is saved, and evaluated afterwards."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from commands import plimsoll
from small_runs import newest_fingerprint, rows

RECIPE = '''
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

HERE = Path(__file__).parent


class HeldOut:
    """A hundred examples, of which those after the twentieth, which nobody reads but to evaluate, take twenty seconds
    while the file `slow` is there."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index > 20 and (HERE / "slow").exists():
            (HERE / "evaluating").touch()
            time.sleep(0.25)
        return {"x": np.full(2, index, np.float32)}


recipe = plimsoll.recipe(
    init=lambda key: {"w": jnp.ones(2)},
    loss=lambda params, batch: (((batch["x"] @ params["w"]) ** 2).sum(), batch["x"].size),
    data=lambda: {"x": np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)},
    validation_data=HeldOut,
    optimizer=lambda steps: optax.adam(1e-3),
    batch_size=4,
    steps=6,
)
'''
OPTIONS = shlex.split(
    "--eval-every 3 --save-every 100 --memory 900MiB --micro-batch 4 --prefetch 0 --async-save False --quiet"
)


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 6])
def test_a_run_told_to_stop_while_it_evaluates_saves_that_step_and_evaluates_it_when_it_goes_on(tmp_path, step):
    recipe, whole, run = tmp_path / "own.py", tmp_path / "whole", tmp_path / "run"
    recipe.write_text(RECIPE)
    done = plimsoll("train", recipe, *OPTIONS, "--run", whole)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "plimsoll.cli.main", "train", str(recipe), *OPTIONS, "--run", str(run)]
    if step == 6:
        first = plimsoll(*command[3:], "--max-steps", 5)
        assert first.returncode == 0, first.stderr
    else:
        assert plimsoll(*command[3:], "--max-steps", 1).returncode == 0  # planned
    (tmp_path / "slow").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "evaluating").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (143, ""), out
    evaluated = [row["step"] for row in rows(run) if "validation_loss" in row]
    assert step not in evaluated
    assert (run / f"checkpoints/step-{step:08d}").is_dir()
    (tmp_path / "slow").unlink()
    again = plimsoll(*command[3:])
    assert again.returncode == 0, again.stderr
    assert newest_fingerprint(run) == newest_fingerprint(whole)
    losses = [
        {row["step"]: row["validation_loss"] for row in rows(of) if "validation_loss" in row} for of in (run, whole)
    ]
    assert losses[0].items() >= losses[1].items()
    assert json.loads((run / "checkpoints/best.json").read_text()) == json.loads(
        (whole / "checkpoints/best.json").read_text()
    )
