"""Files altered since they were written are refused in words: what fuzzing and torture found."""

import json

import numpy as np
import pytest

from making import made
from plimsoll.api.planning.pins import levers_of
from plimsoll.api.train import prepare_data
from plimsoll.cli.main import main
from plimsoll.data.examples import Examples
from plimsoll.errors import DataError, PlimsollError, RecipeError, RunError, as_written
from plimsoll.files.provenance import note_session, sessions
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.own.user_code import failed
from plimsoll.recipes.parts import NO_SPEC, Prepared
from plimsoll.recipes.puzzles.arc_tasks import read_tasks
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import from_dict
from report_examples import PLANNED

CUT = "cut out"


@pytest.mark.parametrize("error", [KeyError("a"), ZeroDivisionError(), RecursionError()])
def test_what_an_altered_file_raises_is_told_as_that(error):
    with (
        pytest.raises(PlimsollError, match=f"it is not as plimsoll writes it .{type(error).__name__}"),
        as_written("it"),
    ):
        raise error
    with pytest.raises(RunError), as_written("it"):  # what was said in better words stays
        raise RunError("its own words")


@pytest.mark.parametrize("field", ["plan", "micro_batch", "budget_bytes"])
def test_a_plan_with_a_field_cut_out_is_refused_before_training(tmp_path, capsys, field):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    planned = PLANNED.to_dict()
    folder.write("plan.json", planned)
    assert folder.planned() == PLANNED
    for values in (planned, planned["plan"]):
        values.pop(field, None)
    folder.write("plan.json", planned)
    assert main(["train", "stories", "--run", str(folder.path)]) == 2
    refusal = capsys.readouterr().err
    assert f"{folder.path}/plan.json is not as plimsoll writes it" in refusal
    assert field in refusal


PARTS = {"model": "decoder", "data": "text", "optimizer": "adamw"}


@pytest.mark.parametrize("saved", [{"kind": "stories"}, [], {"kind": "stories", "parts": PARTS, "fields": []}])
def test_a_recipe_that_is_not_as_it_was_saved_is_refused(saved):
    with pytest.raises(PlimsollError, match=r"recipe.json of the run is not as plimsoll writes it"):
        from_dict(saved)


def test_what_was_prepared_for_a_run_is_refused_without_its_steps(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write("data.json", {"steps_per_epoch": 2.0, "spec": NO_SPEC.to_json()})
    with pytest.raises(PlimsollError, match=f"data.json of {folder.path} is not as plimsoll writes it.*steps"):
        Prepared.read(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulation": CUT}, "accumulation"),
        ({"micro_batch": "8"}, "is not a plan, it.plan.micro_batch is '8'"),
        ({"accumulation": None}, "is not a plan, it.plan.accumulation is None"),
    ],
)
def test_a_plan_file_is_refused_by_the_name_that_is_wrong(tmp_path, changes, words):
    path = tmp_path / "plan.json"
    plan = PLANNED.plan.to_dict() | changes
    plan = {name: value for name, value in plan.items() if value != CUT}
    path.write_text(json.dumps(PLANNED.to_dict() | {"plan": plan}))
    with pytest.raises(RecipeError) as refused:
        levers_of(str(path), preset("stories"), {})
    assert words in str(refused.value)


def test_what_a_users_row_raises_is_told_by_its_line(tmp_path):
    class Rows:
        def __len__(self):
            return 9

        def __getitem__(self, index):
            if index == 5:
                raise RuntimeError("the shelf has fallen over")
            return {"x": np.zeros(2)}

    examples = Examples(Rows(), called="the data", failure=lambda what, problem: failed(tmp_path, what, problem))
    assert examples[4]["x"].shape == (2,)
    with pytest.raises(RecipeError, match=r"the data: example 5 could not be read: RuntimeError: the shelf has fallen"):
        examples[5]


def test_a_damaged_list_of_sessions_is_begun_anew(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "sessions.json").write_text('[{"plimsoll": "0.1.0"')
    note_session(folder)
    assert len(sessions(folder)) == 1


def test_solutions_of_arc_that_are_no_object_are_refused(tmp_path):
    task = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[1]]}]}
    (tmp_path / "a_training_challenges.json").write_text(json.dumps({"one": task}))
    (tmp_path / "a_training_solutions.json").write_text("null")
    with pytest.raises(DataError, match=r"a_training_solutions\.json is no JSON object"):
        read_tasks([tmp_path / "a_training_challenges.json"])


def test_a_text_that_changes_before_anything_is_planned_is_prepared_anew(tmp_path):
    text, folder = tmp_path / "text.txt", RunFolder(tmp_path / "run")
    folder.create()
    recipe = made(
        "stories", dataset_id=str(text), vocab_size=300, seq_len=32, batch_size=4, steps=3, width=32, layers=1, heads=1
    )
    found = []
    for words in ("one two three four", "five six seven nine"):  # of one size
        text.write_text(f"{words}\n\n" * 200)
        found.append(prepare_data(folder, recipe, print))
    assert found[0].facts != found[1].facts
    assert prepare_data(folder, recipe, print) == found[1]
    folder.write("plan.json", {})
    text.write_text("one two three four\n\n" * 200)
    with pytest.raises(DataError, match=r"not the data of this run any more: text\.txt has 200 fewer bytes"):
        prepare_data(folder, recipe, print)
