"""`plimsoll resume RUN` goes on from anywhere without an option of the recipe, or with one that changes on purpose."""

import json
import os
import shutil

import pytest

from commands import plimsoll
from plimsoll import load
from plimsoll.api import plan_of_run
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError, RecipeError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes import handover

PLANNED = "it would be planned now"


@pytest.fixture
def run(tiny_run, tmp_path):
    """A run of its own, as the shared one."""
    return shutil.copytree(tiny_run, tmp_path / "run")


@pytest.fixture
def become(monkeypatch):
    """The session with which training would start."""
    sessions = []

    def note(ready):
        sessions.append(json.loads(ready.command[-1]))
        os.close(ready.lock)
        raise SystemExit(0)

    monkeypatch.setattr(handover, "become", note)
    return sessions


def refused(capsys, *words):
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def test_a_run_goes_on_from_elsewhere_with_its_plan_and_budget(run, become, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(SystemExit):
        main(["resume", "../run", "--max-steps", "30", "--quiet"])
    (session,) = become
    planned = RunFolder(run).planned()
    assert session["budget_bytes"] == planned.ledger.budget_bytes
    assert (session["name"], session["max_steps"], session["on_purpose"]) == ("stories", 30, [])


def test_a_session_evaluates_saves_and_logs_as_the_one_before_it(run, become):
    often = ["--eval-every", "0", "--save-every", "50", "--log-every", "7"]
    for words in ([*often, "--max-steps", "30"], ["--log-every", "3"], []):
        with pytest.raises(SystemExit):
            main(["resume", str(run), *words])
    kept = [tuple(session[name] for name in ("eval_every", "save_every", "log_every")) for session in become]
    assert kept == [(0, 50, 7), (0, 50, 3), (0, 50, 3)]
    assert [session["max_steps"] for session in become] == [30, None, None]


def test_an_option_that_cannot_change_is_refused_with_what_differs(run, capsys):
    error = refused(capsys, "resume", run, "--batch-size", "8", "--seed", "7")
    assert "--batch-size is 4 there and 8 here; --seed is 42 there and 7 here" in error
    assert f"`plimsoll resume {run}` goes on with its own" in error
    assert "--batchsize: did you mean --batch-size" in refused(capsys, "resume", run, "--batchsize", "8")


def test_a_run_of_other_parts_is_named_by_them(run, capsys):
    error = refused(capsys, "train", "stories", "--swap", "optimizer=lion", "--run", run)
    assert "is a run of model=decoder, data=text, optimizer=adamw, and this is model=decoder, data=text," in error
    error = refused(capsys, "train", "stories", "--swap", "model=eigen", "--run", run)
    assert "is a run of stories, and this is eigen+text: " in error


def test_data_that_is_gone_is_refused_with_the_command_that_names_its_new_place(runs, run, capsys, tmp_path):
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["fields"]["dataset_id"] = str(tmp_path / "gone.txt")
    (run / "recipe.json").write_text(json.dumps(recipe))
    RunFolder(run).seal()
    error = refused(capsys, "resume", run)
    assert "gone.txt' is no file or folder here" in error
    assert f"`plimsoll resume {run} --dataset-id PLACE`" in error


def test_the_folder_of_the_data_is_no_folder_for_the_run(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    error = refused(capsys, "train", "stories", "--dataset-id", tmp_path / "texts", "--run", tmp_path / "texts")
    assert "is also named by --dataset-id: a run needs its own folder" in error
    assert not [*(tmp_path / "texts").iterdir()]


def test_a_learning_rate_that_is_typed_changes_the_run(run, capsys, monkeypatch):
    def planned(*_, **__):
        raise PlimsollError(PLANNED)

    monkeypatch.setattr(plan_of_run, "find_plan", planned)
    assert PLANNED in refused(capsys, "resume", run, "--learning-rate", "0.002")
    folder = RunFolder(run)
    assert folder.read("recipe.json")["fields"]["learning_rate"] == 0.002
    (change,) = folder.read("data.json")["changes"]
    assert change.endswith("to 0.002")


def test_a_damaged_plan_is_refused_and_made_anew(run, capsys, monkeypatch):
    def planned(*_, **__):
        raise PlimsollError(PLANNED)

    monkeypatch.setattr(plan_of_run, "find_plan", planned)
    (run / "plan.json").write_text("{")
    assert "add --replan" in refused(capsys, "resume", run)
    assert PLANNED in refused(capsys, "resume", run, "--replan")


def test_data_that_lies_elsewhere_is_the_same_if_its_bytes_are(run, become, runs, tmp_path, monkeypatch, capsys):
    moved = tmp_path / "moved.txt"
    shutil.copy(runs.text, moved)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["resume", str(run), "--dataset-id", "moved.txt", "--quiet"])
    assert RunFolder(run).read("recipe.json")["fields"]["dataset_id"] == str(moved)
    assert len(become) == 1
    moved.write_text("another text\n\n" * 400)
    assert "is not the data of this run any more" in refused(capsys, "resume", run)


def test_python_continues_a_run_and_names_what_differs(run):
    with pytest.raises(RunError, match="--seed is 42 there and 7 here"):
        load(run).train(seed=7)
    with pytest.raises(RecipeError, match=r"has no option sed: did you mean seed\?"):
        load(run).train(sed=7)


def test_a_run_of_functions_is_answered_with_its_sentence(tmp_path, capsys):
    folder = RunFolder(tmp_path / "own")
    folder.create()
    folder.write(
        "recipe.json", {"kind": "file", "name": "mine", "code": {}, "parts": {}, "data": "arrays", "fields": {}}
    )
    error = refused(capsys, "resume", folder.path)
    assert "functions of a Python program or notebook" in error
    assert "plimsoll.plan(loss, ...)" in error


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert "is not a run" in refused(capsys, "resume", tmp_path)
    assert "plimsoll resume needs RUN" in refused(capsys, "resume")
    assert "plimsoll resume needs RUN" in refused(capsys, "resume", "--steps", "3")


def test_its_help_says_what_may_change(capsys, run):
    for words, said in ((["--help"], "--learning-rate"), ([str(run), "-h"], "groups: plan (5)")):
        with pytest.raises(SystemExit):
            main(["resume", *words])
        text = capsys.readouterr().out
        assert all(part in text for part in ("usage: plimsoll resume RUN", said, "--memory SIZE"))


@pytest.mark.slow
def test_a_longer_run_ends_at_its_new_length_and_the_report_says_so(run):
    before = RunFolder(run).read("data.json")["steps"]
    ended = plimsoll("resume", run, "--steps", before + 2, "--learning-rate", "0.002", "--quiet", cwd="/")
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder(run)
    assert folder.saved_steps()[-1] == before + 2
    notes = folder.read("ledger.json")["notes"]
    assert [note.partition(" at step ")[0] for note in notes if " at step " in note] == ["extended", "changed"]
    assert "extended at step" in load(run).report().read_text()


@pytest.mark.slow
def test_other_data_goes_on_with_steps_and_optimizer_also_after_a_kill(run, runs, tmp_path):
    """It is read from its beginning, once: where the run was killed after that, it goes on there."""
    other = tmp_path / "other.txt"
    other.write_text(" ".join(runs.text.read_text().split()[::-1]).replace(" a", "\n\na"))
    before = RunFolder(run).read("data.json")["steps"]
    often = ["--save-every", 2, "--log-every", 1, "--quiet"]
    change = ["--dataset-id", other, "--steps", before + 6, *often]
    whole = shutil.copytree(run, tmp_path / "whole")
    ended = plimsoll("resume", whole, *change)
    assert ended.returncode == 0, ended.stderr

    # Stopped before its first step, then after two; and it goes on without the option.
    for steps in (0, 2):
        assert plimsoll("resume", run, *change, "--max-steps", before + steps).returncode == 0
        assert RunFolder(run).saved_steps()[-1] == before + steps
    ended = plimsoll("resume", run, *often)
    assert ended.returncode == 0, ended.stderr

    assert RunFolder(run).saved_steps()[-1] == before + 6
    assert load(run).fingerprint == load(whole).fingerprint
    notes = RunFolder(run).read("ledger.json")["notes"]
    assert [note for note in notes if note.startswith(f"changed at step {before}: --dataset-id from ")]
    assert "--dataset-id from" in load(run).report(model=False).read_text()
    assert load(run).evaluate()["step"] > before, "the best of what was evaluated on this data"
