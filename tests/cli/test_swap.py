"""A model on data that no preset has it with, through the real command line: planned, trained, continued, sampled."""

import json

import pytest

from commands import answer, plimsoll
from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse_with_recipe
from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.saved import from_dict
from small_runs import write_text

LEVERS = ["--micro-batch", 4, "--remat", "none", "--precision", "float32", "--prefetch", 0, "--async-save", "False"]
SMALL = ["--width", 16, "--layers", 1, "--states", 4, "--vocab-size", 300, "--seq-len", 32, "--batch-size", 4]


def typed(*words):
    return parse_with_recipe(TrainOptions, [*words], command="train").recipe


def test_parts_are_exchanged_before_options_are_read():
    recipe = typed("longcontext", "--swap", "data=text,optimizer=adam-atan2", "--stride", "64", "--beta2", "0.9")
    assert recipe.kind == "eigen+text"
    assert (recipe.data.stride, recipe.optimizer.beta2) == (64, 0.9)
    with pytest.raises(RecipeError, match=r"the recipe longcontext --swap data=text has no option --workers"):
        typed("longcontext", "--swap", "data=text", "--workers", "3")
    with pytest.raises(RecipeError, match=r"--swap text=\.\.\.: a recipe has the parts model, data, optimizer"):
        typed("longcontext", "--swap", "text")
    with pytest.raises(
        RecipeError, match=r"no optimizer called 'sgd': optimizer is one of adamw, adam-atan2, muon, lion"
    ):
        typed("longcontext", "--swap", "optimizer=sgd")
    with pytest.raises(RecipeError, match=r"no optimizer called 'muno': did you mean muon\?"):
        typed("longcontext", "--swap", "optimizer=muno")


@pytest.mark.slow
def test_a_model_is_trained_on_other_data_continued_and_used_where_the_data_is_gone(tmp_path):
    text, run = tmp_path / "a.txt", tmp_path / "run"
    write_text(text)
    words = ["longcontext", "--swap", "data=text", "--dataset-id", text, *SMALL, *LEVERS, "--steps", 4]
    planned = answer("plan", *words, "--memory", "1GiB")
    assert planned["fits"]
    for goal in (2, 4):
        done = plimsoll("train", *words, "--memory", "1GiB", "--run", run, "--quiet", "--max-steps", goal)
        assert done.returncode == 0, done.stderr
        assert RunFolder(run).saved_steps()[-1] == goal

    saved = json.loads((run / "recipe.json").read_text())
    assert saved["parts"] == {"model": "eigen", "data": "text", "optimizer": "adamw"}
    assert from_dict(saved).kind == "eigen+text"
    text.unlink()
    assert answer("sample", run, "--tokens", 5, "--seed", 1)["tokens"] <= 5
