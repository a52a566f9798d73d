"""A signal while the held-out set is evaluated, in real processes: that step is saved, and evaluated afterwards."""

import os
import shlex
import signal
import socket
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


class Started:
    """Processes of a run, each as the command of a user starts it."""

    def __init__(self, words, processes):
        where = [[]]
        if processes > 1:
            together = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes)]
            where = [[*together, "--process", str(number)] for number in range(processes)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "plimsoll.cli.main", "train", *words, *each],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for each in where
        ]

    def until(self, seen):
        while not seen.exists():
            assert all(process.poll() is None for process in self.processes)
            time.sleep(0.01)

    def ended(self):
        said = [process.communicate(timeout=600) for process in self.processes]
        return [(process.returncode, errors) for process, (_, errors) in zip(self.processes, said, strict=True)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


BY_HAND = [pytest.param(*case, marks=pytest.mark.by_hand) for case in ((1, 6), (2, 3), (2, 6))]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "step"), [(1, 3), *BY_HAND])
def test_a_run_told_to_stop_while_it_evaluates_saves_that_step_and_evaluates_it_when_it_goes_on(
    tmp_path, processes, step
):
    """Of two processes one is told, and both stop."""
    recipe, whole, run = tmp_path / "own.py", tmp_path / "whole", tmp_path / "run"
    recipe.write_text(RECIPE)
    fine = [(0, "")] * processes
    assert Started([recipe, *OPTIONS, "--run", whole], processes).ended() == fine
    words = [recipe, *OPTIONS, "--run", run]
    assert Started([*words, "--max-steps", str(step - 1)], processes).ended() == fine
    (tmp_path / "slow").touch()
    started = Started(words, processes)
    started.until(tmp_path / "evaluating")
    started.processes[-1].send_signal(signal.SIGTERM)
    assert started.ended() == [(143, "")] * processes
    evaluated = [row["step"] for row in rows(run) if "validation_loss" in row]
    assert step not in evaluated
    assert RunFolder(run).saved_steps()[-1] == step
    (tmp_path / "slow").unlink()
    assert Started(words, processes).ended() == fine
    assert newest_fingerprint(run) == newest_fingerprint(whole)
    losses = [
        {row["step"]: row["validation_loss"] for row in rows(of) if "validation_loss" in row} for of in (run, whole)
    ]
    assert losses[0].items() >= losses[1].items()
