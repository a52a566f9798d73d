"""Recipes: wrong fields are refused by name and value, and a saved recipe comes back as the same one."""

import json
import re
from dataclasses import asdict, replace

import pytest

from plimsoll.errors import RecipeError
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.overrides import overridden
from plimsoll.recipes.registry import PRESETS, preset
from plimsoll.recipes.saved import differences, from_dict, to_dict
from plimsoll.recipes.text.recipe import Text


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete_and_survives_json(name):
    recipe = preset(name)
    again = from_dict(json.loads(json.dumps(to_dict(recipe))))
    assert again == recipe
    assert differences(again, recipe) == {}
    if recipe.kind == "control":  # all else is in a file that has to be made first
        with pytest.raises(RecipeError, match="--data is missing"):
            recipe.batch_spec(3)
        return
    assert recipe.shape.width > 0
    assert recipe.host_bytes(None, prefetch=2)["data"] > 0
    if recipe.kind == "longcontext":  # inputs and labels are of the same ids
        assert recipe.batch_spec(3) == {"tokens": ((3, recipe.seq_len + 1), "uint16")}
        return
    if recipe.kind == "recommend":
        assert recipe.batch_spec(3) == {"items": ((3, recipe.seq_len + 1), "int32")}
        return
    tokens = "inputs" if recipe.kind == "puzzles" else "input_ids"
    assert recipe.batch_spec(3)[tokens] == ((3, recipe.seq_len), "int32")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch_size": 0}, "--batch-size must be 1 or more, got 0"),
        ({"gradient_accumulation_steps": -1}, "--gradient-accumulation-steps must be 1 or more, got -1"),
        ({"steps": 0}, "--steps must be from 1 to 2,147,483,647, got 0"),
        ({"steps": 1.5}, "--steps must be a whole number, got 1.5"),
        ({"epochs": 0.0}, "--epochs must be above 0 and finite, got 0"),
        ({"epochs": float("nan")}, "--epochs must be above 0 and finite, got nan"),
        ({"epochs": float("inf")}, "--epochs must be above 0 and finite, got inf"),
        ({"steps": 5, "epochs": 1.0}, "--steps 5 and --epochs 1 both set the length"),
        ({"seq_len": 0}, "--seq-len must be 1 or more, got 0"),
        ({"stride": 0}, "--stride must be 1 or more, got 0"),
        ({"vocab_size": 0}, "--vocab-size must be 1 or more, got 0"),
        ({"max_examples": 0}, "--max-examples must be 1 or more, got 0"),
        ({"shuffle_buffer_size": -1}, "--shuffle-buffer-size must be 0 or more, got -1"),
        ({"width": 32}, "give all three, or --target-params alone"),
        ({"width": -32, "layers": 2, "heads": 1}, "--width must be 1 or more, got -32"),
        ({"warmup_steps": -1}, "--warmup-steps must be 0 or more, got -1"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0 and finite, got 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0 and finite, got nan"),
        ({"stride": 200, "seq_len": 64}, "--stride 200 is longer than --seq-len 64"),
        ({"clip_norm": -1.0}, "--clip-norm must be 0 or more and finite, got -1"),
        ({"weight_decay": -0.1}, "--weight-decay must be 0 or more and finite, got -0.1"),
        ({"weight_decay": float("inf")}, "--weight-decay must be 0 or more and finite, got inf"),
        ({"beta2": 1.0}, "--beta2 must be at least 0 and below 1, got 1"),
    ],
)
def test_a_wrong_field_is_refused_by_its_option_and_value(fields, words):
    with pytest.raises(RecipeError) as refused:
        Text(**fields)
    assert words in str(refused.value)


def test_a_shape_that_heads_do_not_divide_is_refused_before_anything_is_read():
    with pytest.raises(RecipeError, match="--width 33 cannot be split over --heads 2"):
        _ = Text(width=33, layers=1, heads=2).shape


def test_the_effective_batch_is_a_product():
    assert Text(batch_size=4, gradient_accumulation_steps=8).effective_batch == 32


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"kind": "os.system", "fields": {}}, "kind 'os.system', which this version does not know"),
        ({"kind": "stories", "fields": {"exec": "rm"}}, "has no option exec"),
        ({"kind": "stories", "fields": {"batch_size": 0}}, "--batch-size"),
    ],
)
def test_a_saved_recipe_that_is_not_ours_is_refused(saved, words):
    with pytest.raises(RecipeError) as refused:
        from_dict(saved)
    assert words in str(refused.value)


def test_differences_are_named_with_both_values():
    one = Text(steps=5)
    assert differences(one, replace(one, seq_len=64, seed=1)) == {"seq_len": (128, 64), "seed": (42, 1)}


def test_an_unknown_preset_suggests_a_near_one():
    with pytest.raises(RecipeError, match="did you mean stories"):
        preset("storeis")


def test_what_was_prepared_survives_json():
    prepared = Prepared(steps=7, steps_per_epoch=None, facts={"tokens": 3})
    assert Prepared(**json.loads(json.dumps(asdict(prepared)))) == prepared


def test_more_steps_than_a_run_can_count_are_refused():
    with pytest.raises(RecipeError, match=r"3,000,000,000 steps, and a run has at most 2,147,483,647: lower --epochs"):
        Prepared(steps=3 * 10**9, steps_per_epoch=10.0)


@pytest.mark.parametrize(("wrong", "hint"), [("stepps", ": did you mean steps?"), ("zzz", "; it has batch_size, ")])
def test_a_misspelt_field_is_answered_where_a_recipe_is_copied_with_it(wrong, hint):
    recipe = preset("code")
    with pytest.raises(RecipeError, match=re.escape(f"Text has no option {wrong}{hint}")):
        replace(recipe, **{wrong: 3})
    assert replace(recipe, steps=3).steps == 3


@pytest.mark.parametrize("name", PRESETS)
def test_a_warm_up_that_nobody_asked_for_is_a_tenth_of_the_run_at_most(name):
    recipe = preset(name)
    for steps in (1, 3, 25, 200, 5_000, 100_000):
        for given in (recipe, replace(recipe, steps=steps)):
            assert warmed_up(given, steps) <= max(1, round(steps / 10))
    assert warmed_up(overridden(recipe, {"warmup_steps": 70}), 100) == 70, "a typed one is as long as it says"
    assert warmed_up(replace(recipe, warmup_steps=70), 100) == 70


@pytest.mark.parametrize(
    ("name", "steps", "warm"),
    [
        ("stories", 5_000, 100),
        ("finetune", 200, 10),
        ("control", 6_000, 500),
        ("recommend-gemma-2b", 10_000, 1_000),
        ("recommend-llama-3.2-1b", 15_000, 1_500),
        ("sudoku", 65_104, 2_000),
        ("sudoku-4x4", 4_687, 100),
        ("longcontext", 2_000, 200),
    ],
)
def test_where_the_warm_up_is_no_longer_it_is_the_default(name, steps, warm):
    assert warmed_up(preset(name), steps) == warm


def warmed_up(recipe, steps):
    """Optimizer steps of the warm-up."""
    rule = recipe.optimizer(steps) if recipe.kind != "puzzles" else recipe.adam_atan2(steps)
    return rule.warmup_steps
