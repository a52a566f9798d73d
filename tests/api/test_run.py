"""A trained run in Python: what its files say, and the same answers as those of the commands."""

import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import plimsoll
from commands import workers_here
from plimsoll.api import use
from plimsoll.files.run_folder import RunFolder
from plimsoll.report.metrics import read_rows
from plimsoll.training.checkpoints import read_leaves
from plimsoll.units import format_bytes
from small_runs import STEPS


@pytest.fixture(scope="module")
def trained(runs):
    """A run of `STEPS` steps that keeps an average of its weights, for all tests that only look at it."""
    return runs.trained()


@pytest.fixture
def run(trained):
    with workers_here():
        yield plimsoll.load(trained)


@pytest.fixture
def fresh(runs):
    """A run that has a plan and nothing else."""
    return plimsoll.load(runs.prepared())


def test_its_rows_and_ledger_are_those_of_its_files_and_it_prints_them(run):
    rows = run.metrics()
    assert rows == list(read_rows(run.path / "metrics.jsonl"))
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == STEPS
    assert {"step_seconds", "elapsed_seconds", "tokens_per_second"} <= rows[0].keys()

    ledger, saved = run.ledger, json.loads((run.path / "ledger.json").read_text())
    assert ledger.budget_bytes == 900 * 2**20
    assert ledger.measured_bytes == saved["measured"]["peak_bytes"]
    assert sum(part["predicted"] for part in ledger.parts.values()) == ledger.predicted_bytes
    assert ledger.parts == saved["components"]
    assert ledger.parts["parameters"]["measured"] > 0

    predicted, measured = format_bytes(ledger.predicted_bytes), format_bytes(ledger.measured_bytes)
    assert str(ledger).startswith(f"measured peak {measured} of 900.0 MiB")
    assert repr(run) == (
        f"Run(recipe: stories, steps: 24 of 24, finished, loss: {losses[-1]:.4f}, predicted: {predicted},"
        f" measured: {measured}, budget: 900.0 MiB, path: {run.path})"
    )


def test_what_cannot_be_read_is_said_in_its_words_and_nothing_fails(trained, tmp_path):
    run = plimsoll.load(shutil.copytree(trained, tmp_path / "run"))
    (run.path / "ledger.json").write_text("{}")
    with pytest.raises(plimsoll.RunError, match=r"ledger\.json is damaged .*budget_bytes is missing.*: .* remove it"):
        _ = run.ledger
    assert "damaged: " in repr(run)
    (run.path / "ledger.json").unlink()
    (run.path / "metrics.jsonl").write_text("nonsense\n")
    assert "recipe: -, steps: - of -, damaged: line 1 of" in repr(run)


def test_before_the_first_session_has_ended_the_ledger_predicts(fresh):
    planned = json.loads((fresh.path / "plan.json").read_text())
    assert (fresh.ledger.predicted_bytes, fresh.ledger.measured_bytes) == (planned["predicted_peak_bytes"], None)
    assert {name: part["predicted"] for name, part in fresh.ledger.parts.items()} == planned["components"]
    assert "peak not measured yet" in str(fresh.ledger)
    (fresh.path / "plan.json").unlink()
    with pytest.raises(plimsoll.RunError, match=r"has no plan yet, so that no bytes are predicted: train it first$"):
        _ = fresh.ledger
    assert "predicted: -, measured: -, budget: -" in repr(fresh)


def saved_leaves(run, step):
    leaves = read_leaves(run.path / f"checkpoints/step-{step:08d}")
    return {path.replace("['params']['trainable']", "['weights']"): leaf for path, leaf in leaves}


def test_its_parameters_are_those_of_the_checkpoint(run):
    for step, average, prefix in ((20, True, "['ema']"), ("last", True, "['ema']"), ("last", False, "['weights']")):
        saved = saved_leaves(run, STEPS if step == "last" else step)
        params = run.params(step, average=average)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        assert len(leaves) == sum(path.startswith(prefix) for path in saved) > 3
        for path, leaf in leaves:
            kept = saved[prefix + jax.tree_util.keystr(path)]
            expected = kept.view(jax.numpy.bfloat16) if kept.dtype == np.uint16 else kept
            np.testing.assert_array_equal(leaf, expected)


def test_a_run_that_never_saved_has_none(fresh):
    for answer in (fresh.params, fresh.evaluate, fresh.sample, lambda: fresh.fingerprint):
        with pytest.raises(plimsoll.CheckpointError, match="has no checkpoint yet: one is saved every") as refusal:
            answer()
        assert "\n" not in str(refusal.value)


def test_it_asks_what_the_commands_ask(run, monkeypatch):
    """Whose tests hold the answers."""
    answers = {"fingerprint": "abc", "step": 20, "notes": ["checkpoint 24 is damaged"]}
    requests = []
    monkeypatch.setattr(use, "use", lambda *request: requests.append(request) or {"text": " end"})
    monkeypatch.setattr(use, "fingerprint", lambda path: answers)
    run.evaluate("last", raw=True)
    assert run.sample("the", tokens=5, seed=3) == "the end"
    run.rank([12, "88"])
    path = str(run.path)
    assert requests == [
        ("evaluate", path, use.EvaluateOptions(step="last", raw=True)),
        ("sample", path, use.SampleOptions(prompt="the", tokens=5, seed=3)),
        ("rank", path, use.RankOptions(history="12,88")),
    ]
    with pytest.warns(UserWarning, match="checkpoint 24 is damaged; the newest whole one is of step 20"):
        assert run.fingerprint == "abc"


def test_what_its_recipe_does_not_do_is_refused(run):
    with pytest.raises(plimsoll.RecipeError, match="is a run of stories, which solves no puzzles"):
        run.solve("1234")
    with pytest.raises(plimsoll.RecipeError, match="is a run of stories, which ranks no items"):
        run.rank(["a", "b"])
    with pytest.raises(plimsoll.CheckpointError, match="has no checkpoint of step '3'; it has "):
        run.params(3)


def test_it_is_exported_into_a_folder_and_its_report_is_a_page(run, tmp_path):
    written = run.export(tmp_path / "folder", step="last")["merged"]
    assert written["bytes"] == sum(path.stat().st_size for path in (tmp_path / "folder").iterdir())
    assert (tmp_path / "folder/model.safetensors").is_file()
    with pytest.raises(plimsoll.RecipeError, match="export writes nothing without a place"):
        run.export()
    (tmp_path / "file").write_text("")
    with pytest.raises(plimsoll.RecipeError, match=r"--merged .*/file/model cannot be written \("):
        run.export(tmp_path / "file" / "model")

    page = run.report(tmp_path / "page.html", model=False)
    assert page == tmp_path / "page.html"
    assert "<html" in page.read_text()


def test_its_attributes_are_listed_and_what_is_no_run_is_refused(run):
    assert {"metrics", "params", "ledger", "path", "fingerprint"} <= {*dir(run)}
    with pytest.raises(plimsoll.RunError, match=r"is not a run: it has no recipe\.json"):
        plimsoll.load(run.path.parent)


def test_its_files_are_read_without_jax(trained):
    program = f"""
import sys, plimsoll
assert not {{"jax", "numpy"}} & {{*sys.modules}}
run = plimsoll.load({str(trained)!r})
run.metrics(), run.ledger, repr(run), str(run.ledger)
assert "jax" not in sys.modules
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


FIELDS = {
    "width": 32, "layers": 2, "heads": 1, "vocab_size": "300", "seq_len": 32, "batch_size": 4, "ema_decay": 0.9,
    "gradient_accumulation_steps": 2, "steps": STEPS, "shuffle_buffer_size": 20,
}  # fmt: skip


def test_training_continues_with_the_recipe_as_keywords_and_hands_out_rows_meanwhile(runs, capfd):
    folder, seen = runs.prepared(), []

    def look(row):
        seen.append((row, RunFolder(folder).is_trained_now()))

    how = {"run": folder, "max_steps": 4, "log_every": 1, "save_every": 4, "quiet": True, "on_log": look}
    run = plimsoll.train("stories", dataset_id=str(runs.text), **FIELDS, **how)
    assert isinstance(run, plimsoll.Run)
    assert run.path == folder
    assert [row for row, _ in seen] == run.metrics()
    assert [row["step"] for row, _ in seen if "loss" in row] == [1, 2, 3, 4]
    assert seen[0][1]
    assert capfd.readouterr().out == ""
