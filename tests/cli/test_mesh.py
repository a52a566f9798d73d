"""`--mesh` as a user gives it: refused where it does not fit; a run that moves to another number of devices."""

import json
import shlex
from dataclasses import replace

import jax
import numpy as np
import pytest

from commands import plimsoll
from plimsoll.api.planning.place import place_of
from plimsoll.api.planning.question import Question
from plimsoll.cli.main import main
from plimsoll.engine.program import load
from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Plan
from plimsoll.processes.environment import CPU_DEVICES
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import from_dict
from plimsoll.training.checkpoints import read_leaves
from plimsoll.types import StepOptions

SMALL = shlex.split(
    "--width 256 --layers 1 --heads 4 --vocab-size 300 --ema-decay 0.9 --seq-len 32 --batch-size 16 --steps 4"
    " --shuffle-buffer-size 16 --micro-batch 8 --remat none --loss-chunk 0 --precision float32 --prefetch 0"
    " --async-save False --eval-every 0"
)

"""With leaves large enough to be split."""
MESHES = ((8, "data=4,fsdp=2"), (2, "fsdp=2"), (1, None))
"""Devices and mesh of each session of a run that moves."""


@pytest.fixture
def devices(monkeypatch):
    """Sets how many devices this machine's CPU is taken for."""
    return lambda count: monkeypatch.setenv(CPU_DEVICES, str(count))


@pytest.mark.slow
def test_a_run_that_moves_between_devices_learns_what_it_learns_on_one(text_file, tmp_path, devices):
    """A step on eight devices, one on two and one on one."""
    command = ["train", "stories", "--dataset-id", str(text_file), *SMALL, "--run", tmp_path]
    said, ledgers = [], []
    for step, (count, mesh) in enumerate(MESHES, start=1):
        devices(count)
        asked = ["--mesh", mesh] if mesh else []
        done = plimsoll(*command, *asked, "--max-steps", step)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        ledgers.append(json.loads((tmp_path / "ledger.json").read_text()))

    # It learns what it learns on one.
    assert [ledger["resumed_from_step"] for ledger in ledgers] == [None, 1, 2]
    run = RunFolder(tmp_path)
    recipe, prepared = from_dict(run.read("recipe.json")), Prepared.read(run)
    plan = Plan.from_dict(run.planned().plan.to_dict() | {"devices": 1, "fsdp": 1})
    alone, source = load(recipe, plan, StepOptions(), steps=prepared.steps), recipe.open(tmp_path).source(prefetch=0)
    state = alone.init(np.uint32(recipe.length.seed))
    for _ in MESHES:
        state, _ = alone.step(state, next(source))
    last = run.saved_steps()[-1]
    assert last == len(MESHES)
    assert run.position(last).loader == source.state()
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    for path, leaf in read_leaves(run.checkpoint(last), only="['params']"):
        assert np.linalg.norm(leaf - expected[path]) <= 1e-5 * np.linalg.norm(expected[path]), path

    # It says why it plans again, and the ledger what each device held.
    assert "was planned for a mesh of data=4,fsdp=2, and --mesh says data=1,fsdp=2: planning again" in said[1]
    assert "was planned for 2 devices, and there are 1 now: planning again" in said[2]
    assert ledgers[2]["per_device"] is None
    for at, (devices, data, fsdp) in ((0, (8, 4, 2)), (1, (2, 1, 2))):
        split = ledgers[at]["per_device"]
        assert (split["devices"], split["data"], split["fsdp"]) == (devices, data, fsdp)
        assert split["state_bytes"]["measured"] == split["state_bytes"]["predicted"]
        assert split["state_bytes"]["measured"] < 1.1 * split["whole_state_bytes"] / fsdp


@pytest.mark.parametrize(
    ("count", "options", "words"),
    [
        (1, "--mesh data=8", ("--mesh data=8 needs 8 devices", "cpu has 1", CPU_DEVICES)),
        (8, "--mesh data=16", ("needs 16 devices", "cpu has 8")),
        (8, "--mesh rows=8", ("--mesh rows=8 is no mesh", "--mesh data=4,fsdp=2")),
        (8, "--mesh data=8 --fsdp 2", ("--mesh data=8 and --fsdp 2 contradict each other",)),
        (8, "--mesh data=6", ("16 examples (--batch-size x --gradient-accumulation-steps) are no multiple of 6",)),
        (8, "--mesh data=8 --micro-batch 4", ("4 examples (--micro-batch) are no multiple of 8",)),
        (8, "--mesh data=8 --debug-nans", ("--debug-nans", "one device")),
        (1, "--mesh data=4 --chip h100", ("--mesh data=4 needs 4 devices", "h100 has 1", "h100x8")),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(text_file, tmp_path, devices, count, options, words, capsys):
    devices(count)
    command = ["train", "stories", "--dataset-id", str(text_file), "--steps", "4", "--batch-size", "16"]
    assert main([*command, "--run", str(tmp_path / "r"), *options.split()]) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error


def test_of_several_processes_each_has_an_equal_part_of_the_mesh(devices):
    devices(1)
    for mesh in ("data=3", "data=4"):
        question = Question(recipe=preset("code"), name="code", pins={"micro_batch": 12}, chip="cpu", mesh=mesh)
        with pytest.raises(
            RecipeError,
            match=rf"needs {mesh[-1]} devices, in equal parts for 2 processes, and cpu has 2: .*{CPU_DEVICES}",
        ):
            place_of(question, processes=2)
    assert place_of(replace(question, mesh="data=2"), processes=2).chip.devices == 2
