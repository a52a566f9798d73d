"""A card that refuses memory, or no longer answers, while a run trains: XLA's error is raised where XLA raises it."""

import json
import subprocess
import sys

import pytest

from plimsoll.files.run_folder import RunFolder
from plimsoll.processes import environment
from plimsoll.training import overruns
from plimsoll.units import MIB
from small_runs import SAVE_EVERY, checkpoint_steps

FAILS_IN = SAVE_EVERY + 2
TRAINS = f"""
import dataclasses, json, sys
import jax
from plimsoll import worker
from plimsoll.processes import handover
from plimsoll.engine import program

load = program.load

def breaking(*arguments, **options):
    executables, taken = load(*arguments, **options), []

    def step(state, batch):
        taken.append(1)
        if len(taken) == {FAILS_IN}:
            for leaf in jax.tree.leaves(state):
                leaf.delete()  # donated to the step that fails
            raise jax.errors.JaxRuntimeError(sys.argv[2])
        return executables.step(state, batch)

    return dataclasses.replace(executables, step=step)

def become(ready):
    print("BECOMES", json.dumps(ready.command))
    sys.exit(0)

program.load, handover.become = breaking, become
sys.exit(worker.main(["train", sys.argv[1]]))
"""
"""The training process, but that a step of its fails, and that it prints what it would become."""


def trained(run, message):
    session = json.dumps({"run": str(run), "budget_bytes": 900 * MIB, "save_every": SAVE_EVERY, "quiet": True})
    command = [sys.executable, "-c", TRAINS, session, message]
    variables = environment.for_processes("cpu")
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_where_the_card_refuses_memory_the_run_is_planned_again_from_its_last_checkpoint(runs):
    run = runs.prepared()
    ended = trained(run, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.")
    assert ended.returncode == 0, ended.stderr
    (overrun,) = overruns.read(RunFolder(run))
    assert (overrun.what, overrun.step) == ("allocator", SAVE_EVERY)
    assert overrun.said.endswith("allocate 7406166528 bytes.")
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("BECOMES")]
    *_, verb, request = json.loads(line.removeprefix("BECOMES "))
    assert verb == "again"
    assert json.loads(request)["memory"] == 900 * MIB
    assert checkpoint_steps(run)[-1] == SAVE_EVERY


def test_a_card_that_no_longer_answers_ends_the_run_with_what_was_saved(runs):
    run = runs.prepared()
    ended = trained(run, "INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered")
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: the accelerator no longer answers (INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE")
    assert f"up to step {SAVE_EVERY} is whole" in line
    assert checkpoint_steps(run)[-1] == SAVE_EVERY
    assert not (run / "overruns.json").exists()


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        ("tpu", "JAX lost the accelerator before training began: Unable to initialize backend 'tpu'"),
        ("cuda,cpu", "is planned for h200, and JAX finds only a CPU in the process that was to train"),
    ],
)
def test_a_card_that_is_gone_before_the_first_step_is_one_paragraph_and_no_cpu_takes_its_place(
    runs, platforms, message
):
    """JAX is told to use backends that this machine has not: of a GPU it then falls back to the CPU by itself."""
    run = runs.prepared()
    planned = json.loads((run / "plan.json").read_text())
    planned["plan"]["chip"] = "h200"
    (run / "plan.json").write_text(json.dumps(planned))
    session = json.dumps({"run": str(run), "budget_bytes": 900 * MIB, "quiet": True})
    command = [sys.executable, "-m", "plimsoll.worker", "train", session]
    variables = environment.for_processes("cpu") | {"JAX_PLATFORMS": platforms}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert message in line
    assert "`plimsoll doctor` says whether" in line
    assert checkpoint_steps(run) == []
