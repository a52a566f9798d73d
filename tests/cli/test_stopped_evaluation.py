"""A signal while the held-out set is evaluated, in a real process: that step is saved, and evaluated afterwards."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from plimsoll.files.run_folder import RunFolder
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


def started(*words):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "plimsoll.cli.main", "train", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors


@pytest.mark.slow
def test_a_run_told_to_stop_while_it_evaluates_saves_that_step_and_evaluates_it_when_it_goes_on(tmp_path):
    recipe, whole, run = tmp_path / "own.py", tmp_path / "whole", tmp_path / "run"
    recipe.write_text(RECIPE)
    assert ended(started(recipe, *OPTIONS, "--run", whole)) == (0, "")
    words = [recipe, *OPTIONS, "--run", run]
    assert ended(started(*words, "--max-steps", "2")) == (0, "")
    (tmp_path / "slow").touch()
    process = started(*words)
    while not (tmp_path / "evaluating").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")
    assert 3 not in [row["step"] for row in rows(run) if "validation_loss" in row]
    assert RunFolder(run).saved_steps()[-1] == 3
    (tmp_path / "slow").unlink()
    assert ended(started(*words)) == (0, "")
    assert newest_fingerprint(run) == newest_fingerprint(whole)
    losses = [
        {row["step"]: row["validation_loss"] for row in rows(of) if "validation_loss" in row} for of in (run, whole)
    ]
    assert losses[0].items() >= losses[1].items()
