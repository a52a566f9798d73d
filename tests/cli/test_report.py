"""`plimsoll report`, as a user types it: pages of runs that were trained a moment ago, and the refusals."""

import json
import os
import shutil

import pytest

from commands import called, plimsoll
from plimsoll.cli import report as command
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.inference.showcase import bound_memory


def test_a_run_becomes_one_page_with_what_it_writes(tiny_run, tmp_path):
    done = plimsoll("report", tiny_run, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'page.html'}\n"
    page = (tmp_path / "page.html").read_text()
    for words in ("Memory under the budget", "What it writes", "Learning rate", "Throughput"):
        assert words.lower() in page.lower()
    assert f"--plan {tiny_run}/plan.json" in page
    *_, session = json.loads((tiny_run / "sessions.json").read_text())
    assert session["jax"] in page
    assert "Left out" not in page


def test_puzzles_are_shown_before_and_after(puzzle_run, tmp_path):
    done = called("report", puzzle_run, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "What it solves" in page
    assert "test:2, the answer" in page


def test_the_page_lies_in_the_run_unless_it_is_told_otherwise(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "<b>run & co")
    assert main(["report", str(run), "--no-model"]) == 0
    page = (run / "report.html").read_text()
    assert "<b>run" not in page
    assert "&lt;b&gt;run &amp; co" in page
    out = tmp_path / "plan.html"
    assert main(["report", "--plan", str(tiny_run / "plan.json"), "--out", str(out)]) == 0
    assert "A plan that was never run" in out.read_text()


def test_a_damaged_checkpoint_costs_what_needs_it_and_no_more(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    for checkpoint in (run / "checkpoints").glob("step-*"):
        (checkpoint / "manifest.json").write_text("{}")
    done = called("report", run)
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text()
    assert "Left out" in page
    assert "what it writes: checkpoint 24" in page
    assert "Learning rate" in page


def test_a_folder_that_may_not_be_written_to_is_said_before_anything_is_asked(tiny_run, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PlimsollError, match="cannot be written: name a file in a folder"):
        command.report([str(tiny_run)])


def test_a_process_that_is_larger_than_its_bound_already_says_so():
    with pytest.raises(PlimsollError, match=r"has only started JAX takes .* [MG]iB, and it may use 1\.0 MiB"):
        bound_memory(2**20)
