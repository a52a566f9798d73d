"""Training on the card of this machine: what is refused where there is none, and what a card's process is told.

No card was to be had when this was written: `benchmarks/device.py` runs the same on one.
"""

import dataclasses
import json
import subprocess
import sys

import pytest

from plimsoll.api import accelerator, train
from plimsoll.errors import RecipeError, RunError
from plimsoll.planner.chips import chip
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.runs.folder import RunFolder
from plimsoll.units import GIB
from report_examples import PLANNED

CARD = accelerator.Card(kind="NVIDIA H200", memory_bytes=140 * GIB)


def silently(text):
    raise AssertionError(f"said {text}")


def test_a_cards_process_may_have_the_budget_and_no_more():
    variables = accelerator.training_environment(chip("h200"), CARD, 35 * GIB, silently)
    assert float(variables["XLA_CLIENT_MEM_FRACTION"]) == pytest.approx(0.25)
    assert variables["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert variables["JAX_PLATFORMS"] == "cuda,cpu"


def test_what_the_user_set_for_the_allocator_does_not_contradict_the_budget():
    theirs = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "HOME": "/"}
    variables = environment.on_card(0.5, base=theirs)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in variables
    assert "XLA_PYTHON_CLIENT_ALLOCATOR" not in variables
    assert variables["HOME"] == "/"


def test_a_card_smaller_than_the_budget_is_refused_and_another_kind_is_said():
    small = dataclasses.replace(CARD, kind="NVIDIA L4", memory_bytes=20 * GIB)
    with pytest.raises(RecipeError, match=r"NVIDIA L4 .* gives a process 20.0 GiB, and the budget for h200 is 35.0"):
        accelerator.training_environment(chip("h200"), small, 35 * GIB, silently)
    messages = []
    accelerator.training_environment(chip("h200"), small, 10 * GIB, messages.append)
    assert "has a NVIDIA L4" in messages[0]


def test_what_is_several_machines_is_not_trained_on_by_one_command():
    with pytest.raises(RecipeError, match=r"tpu-v4-64 is 32 devices in 8 machines, .* start it on each of them"):
        accelerator.card_for(chip("tpu-v4-64"))


def test_as_many_devices_as_the_chip_has_must_be_here(monkeypatch):
    monkeypatch.setattr(
        accelerator, "ask", lambda *_, **__: {"backend": "gpu", "devices": 4 * [dataclasses.asdict(CARD)]}
    )
    assert accelerator.card_for(chip("h200x4")) == CARD
    with pytest.raises(RecipeError, match=r"needs 8 devices in this machine .* JAX finds 4 of its 8"):
        accelerator.card_for(chip("h200x8"))


def test_a_card_that_is_not_here_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(
        accelerator, "ask", lambda *_, **__: {"backend": "cpu", "devices": [{"kind": "cpu", "memory_bytes": None}]}
    )
    with pytest.raises(RecipeError, match=r"--chip h200 needs an NVIDIA GPU in this machine .* JAX finds a cpu alone"):
        accelerator.card_for(chip("h200"))
    monkeypatch.setattr(accelerator, "ask", lambda *_, **__: {"backend": "gpu", "devices": [dataclasses.asdict(CARD)]})
    assert accelerator.card_for(chip("h200")) == CARD


def test_a_run_stays_on_its_chip_until_it_is_planned_again(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    assert train._target(folder, train.TrainOptions()).name == "cpu"
    assert train._target(folder, train.TrainOptions(chip="l4")).name == "l4"
    plan = dataclasses.replace(PLANNED.plan, chip="h200")
    folder.write("plan.json", dataclasses.replace(PLANNED, plan=plan).to_dict())
    assert train._target(folder, train.TrainOptions()).name == "h200"
    with pytest.raises(RunError, match=r"is planned for h200, and --chip says cpu: add --replan"):
        train._target(folder, train.TrainOptions(chip="cpu"))
    assert train._target(folder, train.TrainOptions(chip="cpu", replan=True)).name == "cpu"


def test_the_process_that_looks_is_a_real_one():
    """Where a card is, its memory is found; where none is, that is said."""
    result = ask("accelerators", {}, under=environment.on_card(1.0))
    assert result["backend"] in ("cpu", "gpu")
    assert (result["devices"][0]["memory_bytes"] is None) == (result["backend"] == "cpu")


ON_A_FAKE_CARD = """
import json, sys
import jax
from plimsoll.training import allocator
most = {}
def counted(figure="bytes_in_use"):
    held = sum(array.nbytes for array in jax.live_arrays())
    most["now"] = held
    most["peak"] = max(most.get("peak", 0), held)
    return most["now" if figure == "bytes_in_use" else "peak"]
allocator.device_bytes = counted
from plimsoll import worker
sys.exit(worker.main(["train", sys.argv[1]]))
"""
"""The training process, but that its devices count their arrays, as an accelerator's allocator does."""


@pytest.mark.slow
def test_beside_an_accelerator_the_ledger_has_its_bytes_and_the_hosts(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "plimsoll.cli.main", "train", "code", "--width", "32", "--layers", "1"]
    command += ["--heads", "2", "--vocab-size", "384", "--seq-len", "16", "--batch-size", "4", "--steps", "6"]
    command += ["--shuffle-buffer-size", "0", "--max-examples", "20", "--memory", "1GiB", "--run", str(folder)]
    command += ["--micro-batch", "4", "--remat", "none", "--loss-chunk", "0", "--precision", "float32", "--quiet"]
    subprocess.run([*command, "--max-steps", "2"], check=True)
    assert "host" not in json.loads((folder / "ledger.json").read_text())
    session = json.dumps({"run": str(folder), "budget_bytes": GIB, "log_every": 1})
    subprocess.run([sys.executable, "-c", ON_A_FAKE_CARD, session], check=True, env=environment.for_processes("cpu"))
    result = json.loads((folder / "ledger.json").read_text())
    measured = {name: sizes["measured"] for name, sizes in result["components"].items() if sizes["measured"]}
    assert measured["parameters"] * 2 == pytest.approx(measured["optimizer"], rel=0.01)
    assert "process" not in measured
    assert result["host"]["measured_peak_bytes"] > 50 * 2**20
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = [row["peak_device_bytes"] for row in rows if "peak_device_bytes" in row]
    assert len(counted) == 4  # the steps of the second session
    assert 0 < max(counted) <= result["measured"]["peak_bytes"]
