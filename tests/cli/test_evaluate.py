"""Evaluate, sample, fingerprint, runs, inspect: what they say of a run that was trained a moment ago."""

import json
import os
import re
import shutil

import numpy as np
import pytest

from commands import answer, called, plimsoll
from plimsoll.cli import look
from plimsoll.errors import CheckpointError
from plimsoll.files.run_folder import RunFolder
from plimsoll.inference.evaluate import prove
from plimsoll.inference.trained import PARAMETERS, choose, whole
from plimsoll.report.metrics import read_rows
from plimsoll.report.summary import evaluation_text
from plimsoll.training.checkpoints import read_leaves
from small_runs import best_evaluation, newest_fingerprint


@pytest.fixture
def copied(tiny_run, tmp_path):
    """A run to damage."""
    return RunFolder(shutil.copytree(tiny_run, tmp_path / "run"))


def flip_a_bit(checkpoint):
    largest = max(
        (path for path in (checkpoint / "state").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_evaluating_gives_the_loss_that_training_logged(tiny_run):
    found = answer("evaluate", tiny_run, "--step", "last", by=plimsoll)
    logged = [row for row in read_rows(tiny_run / "metrics.jsonl") if "validation_loss" in row][-1]
    assert found["loss"] == logged["validation_loss"]
    assert found["step"] == logged["step"] == 24
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    assert found["tokens"] == len(np.load(tiny_run / "validation.npy")) - 1


def test_the_best_checkpoint_is_the_default_and_without_an_evaluation_the_last(copied):
    assert choose(copied, "best") == best_evaluation(copied.path).step
    copied.metrics.unlink()
    assert choose(copied, "best") == 24


def test_held_out_data_of_which_a_bit_has_changed_are_not_evaluated_on(copied):
    path = copied.path / "validation.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused = called("evaluate", copied.path)
    assert (refused.returncode, "validation.npy has changed" in refused.stderr) == (2, True)


def test_only_the_parameters_are_read(tiny_run):
    checkpoint = RunFolder(tiny_run).checkpoint(24)
    everything, read = (dict(read_leaves(checkpoint, only=only)) for only in ("", PARAMETERS))
    assert {path for path in everything if path.startswith(PARAMETERS)} == set(read) < set(everything)


def test_a_step_that_was_not_saved_is_refused_with_those_that_were(copied):
    with pytest.raises(CheckpointError, match=r"no checkpoint of step '4'; it has 20, 24 \(best\)"):
        choose(copied, "4")
    shutil.rmtree(copied.checkpoints)
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        choose(copied, "best")


def test_a_flipped_bit_is_refused_before_it_is_loaded(copied):
    flip_a_bit(copied.checkpoint(24))
    done = called("evaluate", copied.path, "--step", "last")
    assert (done.returncode, done.stdout) == (2, "")
    (refusal,) = done.stderr.splitlines()
    assert re.match(r"error: checkpoint 24 of .* is damaged \(.* has changed.*use --step 20, or", refusal)
    assert whole(copied, "20") == 20


def test_the_fingerprint_is_of_the_newest_whole_checkpoint(copied):
    found = answer("fingerprint", copied.path)
    assert found["fingerprint"] == newest_fingerprint(copied.path)
    assert found["step"] == 24
    flip_a_bit(copied.checkpoint(24))
    older = answer("fingerprint", copied.path)
    assert older["step"] == 20
    assert "checkpoint 24 is damaged" in older["notes"][0]
    assert copied.checkpoint(24).exists()  # looked at, not set aside
    flip_a_bit(copied.checkpoint(20))
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* is whole: checkpoint 24 is .*; checkpoint 20 is"):
        prove({"run": str(copied.path)})


def test_the_same_seed_writes_the_same_text(tiny_run):
    options = ("--prompt", "the cat", "--tokens", 12)
    one = answer("sample", tiny_run, *options)
    assert one["tokens"] == 12 or one["ended"]
    printed = called("sample", tiny_run, *options)
    assert printed.stdout.splitlines() == ("the cat" + one["text"]).splitlines()


def test_a_prompt_may_hold_anything_that_can_be_typed(tiny_run):
    assert answer("sample", tiny_run, "--tokens", 1, "--prompt", "x = 1\n--y")["prompt"] == "x = 1\n--y"
    assert answer("sample", tiny_run, "--tokens", 1, "--prompt=--y=2")["prompt"] == "--y=2"
    assert answer("sample", tiny_run, "--tokens", 1, "--prompt", b"caf\xc3")["prompt"] == "caf\ufffd"


def test_runs_says_how_far_each_came(tiny_run, copied):
    ledger = json.loads((tiny_run / "ledger.json").read_text())
    assert look.run_row(tiny_run, name="tiny") == {
        "name": "tiny",
        "path": str(tiny_run),
        "recipe": "stories",
        "step": 24,
        "steps": 24,
        "loss": [row for row in read_rows(tiny_run / "metrics.jsonl") if "loss" in row][-1]["loss"],
        "best_validation_loss": best_evaluation(tiny_run).validation_loss,
        "exact_accuracy": None,
        "predicted_bytes": ledger["predicted"]["peak_bytes"],
        "peak_bytes": ledger["measured"]["peak_bytes"],
        "budget_bytes": ledger["budget_bytes"],
        "state": "finished",
    }
    shutil.rmtree(copied.checkpoints / "step-00000024")
    assert look.run_row(copied.path, name="copy")["state"] == "stopped at step 20"
    shutil.rmtree(copied.checkpoints)
    assert look.run_row(copied.path, name="copy")["state"] == "nothing saved"


def test_a_run_that_is_being_trained_says_so(copied):
    descriptor = copied.lock()
    assert look.run_row(copied.path, name="copy")["state"] == "training now"
    os.close(descriptor)
    assert look.run_row(copied.path, name="copy")["state"] == "finished"
    copied.lock()  # looking left it free


def test_a_damaged_run_does_not_hide_the_others(copied, capsys):
    other = copied.path.with_name("other")
    shutil.copytree(copied.path, other)
    (other / "plan.json").write_text("{")
    assert look.runs([str(copied.path.parent), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [row["name"] for row in found] == ["other", "run"]
    assert found[0]["state"].startswith("damaged: ")
    assert found[1]["state"] == "finished"


def test_no_runs_are_no_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert look.runs([]) == 0
    assert capsys.readouterr().out == "no runs here\n"


GOLDEN_DATA = """\
a.jsonl
  data                1 jsonl file, 69 B; documents: one line, one document
  columns             story, id
  read                2 documents, 22 characters: all of it
  for validation      0 of these documents
  a document          11 characters on average, 15 at most
  begins              'one\\ntwo'
  begins              'three four five'
"""


def test_golden_inspecting_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"story": "one\ntwo", "id": 1}, {"story": "three four five", "id": 2}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert look.inspect(["a.jsonl", "--text-column", "story"]) == 0
    assert capsys.readouterr().out == GOLDEN_DATA
    assert look.inspect(["a.jsonl", "--text-column", "story", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scanned_documents"] == 2


def test_golden_evaluation():
    found = {"run": "runs/code", "step": 1200, "loss": 2.5, "perplexity": 12.1825, "tokens": 29297}
    assert evaluation_text(found) == (
        "runs/code at step 1,200, on its held-out set\n"
        "  loss                      2.5000\n"
        "  perplexity                12.1825\n"
        "  tokens                    29,297"
    )
