"""Options that the published guides have, and that mean something of ours."""

import dataclasses

import pytest

from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse, take_recipe
from plimsoll.errors import RecipeError


def parsed(*words):
    name, recipe, rest = take_recipe(["stories", *words], command="train")
    return parse(TrainOptions, rest, program=f"plimsoll train {name}", recipe=recipe)


@pytest.mark.parametrize(
    "words",
    [
        ("--checkpoint-dir", "runs/x"),
        ("--checkpoint_dir", "runs/x"),
        ("--checkpoint_dir=runs/x",),
        ("--checkpoint-dir=runs/x", "--resume"),
        ("--resume", "--output_dir", "runs/x"),
    ],
)
def test_the_folder_of_checkpoints_is_the_run_and_resuming_is_what_happens_anyway(words):
    assert dataclasses.replace(parsed(*words), run=None) == parsed()
    assert parsed(*words).run == "runs/x"


def test_a_checkpoint_that_is_named_is_not_silently_left_out():
    with pytest.raises(RecipeError, match=r"got 'step_1000\.pt'"):
        parsed("--resume", "step_1000.pt")
    with pytest.raises(RecipeError, match=r"got 'step_1000\.pt'"):
        parsed("--resume=step_1000.pt")


def test_a_value_with_underscores_and_an_equals_sign_stays_what_it_is():
    assert parsed("--dataset-id", "my_texts=1").recipe.dataset_id == "my_texts=1"
