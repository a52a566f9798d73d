"""Every recipe over eight devices learns what it learns on one, and a device holds its share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plain_code import PLAIN_CODE

DEVICES, FSDP = 8, 2
LEVERS = (
    "finetune-nf4",
    "finetune-int8",
    "stories-8-bit",
    "stories-in-chunks",
    "stories-by-layers",
    "stories-offloaded",
)
"""Names of tests/support/mesh_runs.py: recipes whose plans have levers."""
RECIPES = ("stories", "control", "longcontext", "recommend", "recommend-gemma-2b", "sudoku-mlp", "plain_jax", *LEVERS)
OF_OTHERS = {
    "control", "longcontext", "recommend-gemma-2b", "plain_jax", "finetune-int8", "stories-by-layers",
    "stories-in-chunks", "sudoku-mlp",
}  # fmt: skip
"""Of these nothing is split in a way that another one's is not."""


def cases(names):
    """Parameters of a test, and those of them that are left to `make test-by-hand`."""
    return [pytest.param(name, marks=pytest.mark.by_hand if name in OF_OTHERS else ()) for name in names]


@pytest.fixture(scope="module")
def runs(request):
    """Thirty steps of each, on one device and on eight; of puzzles, whose halting is discontinuous, one step."""
    script = Path(__file__).parents[1] / "support/mesh_runs.py"
    path = os.pathsep.join(folder for folder in sys.path if folder)
    environment = os.environ | {"PYTHONPATH": path, "XLA_FLAGS": PLAIN_CODE}
    here = [item for item in request.session.items if item.path == request.path]
    chosen = sorted({item.callspec.params["recipe"] for item in here})
    command = [sys.executable, str(script), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", cases(RECIPES))
def test_parameters_agree_with_those_of_one_device_and_each_holds_its_share(runs, recipe):
    """The rest it holds whole."""
    found = runs[recipe]
    assert found["distance"] < 1e-5
    assert found["finite"]
    assert found["gradient"] > 0
    whole = found["whole"] - found["split"] - found["by_rows"]
    assert found["held"] == [whole + found["split"] // FSDP + found["by_rows"] // DEVICES] * DEVICES
    if recipe in ("stories", "longcontext", "control"):
        assert found["split"] > 0.9 * found["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", cases(name for name in RECIPES if name != "stories-by-layers"))
def test_copies_of_the_state_sum_their_gradients_once_a_step(runs, recipe):
    """In the loop over micro-batches nothing is summed but over the devices that share one copy.

    By layers there is a sum for each of them.
    """
    sums = runs[recipe]["sums"]
    assert all(parties <= FSDP for _elements, parties in sums["loop"])
    summed = sum(elements for elements, parties in sums["once"] if parties == DEVICES // FSDP)
    assert summed * FSDP >= 0.9 * runs[recipe]["split_parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", cases(["finetune-nf4", "finetune-int8"]))
def test_frozen_weights_cross_between_devices_as_they_are_stored_and_each_gets_its_share_alone(runs, recipe):
    """For a moment, as the model is read from its files, that of the largest array twice."""
    codes = {"finetune-nf4": "u8", "finetune-int8": "s8"}[recipe]
    assert codes in runs[recipe]["gathered"]
    begun = runs[recipe]["from_files"]
    assert begun["same"]
    assert begun["share"] <= begun["most"] <= begun["share"] + begun["largest"]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "least", "most"), [("stories-offloaded", 0.6, 1), ("stories", 0, 0)])
def test_moments_lie_on_the_host_for_all_devices(runs, recipe, least, most):
    assert least * runs[recipe]["whole"] <= runs[recipe]["on_host"] <= most * runs[recipe]["whole"]
