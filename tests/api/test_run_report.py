"""What a page is drawn from: a run's files as they stand, whatever state they are in."""

import dataclasses
import json
import math

import pytest

from plimsoll.api import run_report
from plimsoll.errors import PlimsollError
from plimsoll.files.manifest import finish
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Component
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict
from plimsoll.units import GIB, MIB
from plimsoll.values import to_json
from report_examples import LEDGER, PLANNED

ROWS = [
    {"step": 1, "loss": 3.0, "elapsed_seconds": 0.5, "step_seconds": 0.5, "peak_resident_bytes": 300 * MIB},
    {"step": 2, "loss": None, "not_finite": {"loss": "nan"}, "elapsed_seconds": 1.0, "step_seconds": 0.5},
    {"step": 2, "validation_loss": 2.5, "validation_loss_from_0": 2.6, "validation_loss_from_1": 2.2},
]


def saved(checkpoint):
    checkpoint.mkdir()
    finish(checkpoint)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    recipe = preset("longcontext").replace(seq_len=512)
    folder.write("recipe.json", to_dict(recipe))
    folder.write("plan.json", PLANNED.to_dict() | {"recipe": "longcontext"})
    folder.write("data.json", Prepared(steps=2, steps_per_epoch=None, spec=recipe.spec).to_json())
    folder.write("ledger.json", to_json(LEDGER))
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def test_files_become_what_a_page_needs(run):
    recorded = run_report.recorded(str(run.path), ask_model=False)
    assert (recorded.name, recorded.state, recorded.steps) == ("run", "nothing saved", 2)
    assert list(recorded.columns["loss"].steps) == [1, 2]
    assert math.isnan(recorded.columns["loss"].values[1])
    assert recorded.best() == (2, 2.5)
    assert recorded.planned == dataclasses.replace(PLANNED, recipe="longcontext")
    repeat = recorded.commands["Repeats it, with the same plan"]
    assert repeat.startswith("plimsoll train longcontext --seq-len 512 --memory 2048MiB")
    assert "it was not asked (--no-model)" in recorded.left_out[0]
    (shown,) = recorded.exhibits
    assert (shown["title"], shown["y"]) == ("Loss by position", {"held-out documents": [2.6, 2.2]})


def test_a_run_killed_in_the_middle_of_a_row_has_all_rows_before_it(run):
    with open(run.metrics, "a") as file:
        file.write('{"step": 3, "los')
    (run.path / "ledger.json").unlink()
    recorded = run_report.recorded(str(run.path))
    assert recorded.last_step == 2
    assert recorded.measured_peak_bytes == 300 * MIB
    assert recorded.ledger.components["process"] == Component(predicted=384 * MIB)
    assert "the run has no checkpoint yet" in recorded.left_out[0]


def test_a_run_that_is_trained_now_is_not_held_up(run):
    saved(run.checkpoints / "step-00000001")
    lock = run.lock()
    recorded = run_report.recorded(str(run.path))
    assert recorded.state == "training now"
    assert "the run is training now" in recorded.left_out[0]
    del lock


def test_a_run_without_plan_and_metrics_has_a_page_all_the_same(run):
    for file in (run.path / "plan.json", run.path / "ledger.json", run.metrics):
        file.unlink()
    recorded = run_report.recorded(str(run.path))
    assert (recorded.planned, recorded.ledger, recorded.columns, recorded.commands) == (None, None, {}, {})


def test_a_lever_that_a_recipes_file_registers_costs_the_plan_alone(run):
    """Drawing a page is no reason to run that file."""
    planned = PLANNED.to_dict()
    run.write("plan.json", planned | {"plan": planned["plan"] | {"norms": "bfloat16"}})
    recorded = run_report.recorded(str(run.path), ask_model=False)
    assert recorded.planned is None
    assert recorded.ledger == LEDGER
    assert "a plan has no lever norms" in recorded.left_out[0]


def test_a_model_that_takes_too_much_is_left_out_with_its_limit(run, monkeypatch):
    """The process dies at once where a library of C++ is refused memory."""
    questions = []

    def ask(verb, question):
        questions.append((verb, question["limit_bytes"]))
        raise PlimsollError("the worker process for 'show' was killed by signal 6")

    monkeypatch.setattr(run_report, "ask", ask)
    saved(run.checkpoints / "step-00000002")
    recorded = run_report.recorded(str(run.path))
    assert questions == [("show", 2 * GIB)]
    assert recorded.left_out[-1].endswith("was killed by signal 6. It may use 2.0 GiB")
