"""Recipes: wrong fields are refused by name and value, and a saved recipe comes back as the same one."""

import json

import optax
import pytest

import plimsoll
from making import made
from plimsoll.errors import RecipeError
from plimsoll.optimizers.foreign import Optax
from plimsoll.recipes.flat import overridden
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import differences, from_dict, to_dict

STORIES = {"model": "decoder", "data": "text", "optimizer": "adamw"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete_and_survives_json(name):
    recipe = preset(name)
    again = from_dict(json.loads(json.dumps(to_dict(recipe))))
    assert again == recipe
    assert differences(again, recipe) == {}
    if recipe.kind == "control":  # all else is in a file that has to be made first
        with pytest.raises(RecipeError, match="--data is missing"):
            recipe.spec.batch(3)
        return
    assert recipe.hints.levers
    assert recipe.data.memory(None, recipe.reading, prefetch=2).bytes > 0
    names = {"longcontext": "tokens", "recommend": "items", "puzzles": "inputs"}
    whole = recipe.kind in ("longcontext", "recommend")  # inputs and labels are of the same ids
    spec = recipe.spec.batch(3)[names.get(recipe.kind, "input_ids")]
    assert spec == ((3, recipe.options["seq_len"] + whole), "uint16" if recipe.kind == "longcontext" else "int32")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch_size": 0}, "--batch-size must be 1 or more, got 0"),
        ({"steps": 0}, "--steps must be 1 or more and at most 2,147,483,647, got 0"),
        ({"steps": 1.5}, "--steps must be a whole number, got 1.5"),
        ({"epochs": 0.0}, "--epochs must be above 0 and finite, got 0"),
        ({"epochs": float("nan")}, "--epochs must be above 0 and finite, got nan"),
        ({"steps": 5, "epochs": 1.0}, "--steps 5 and --epochs 1 both set the length"),
        ({"stride": 0}, "--stride must be 1 or more, got 0"),
        ({"shuffle_buffer_size": -1}, "--shuffle-buffer-size must be 0 or more, got -1"),
        ({"width": 33, "layers": 1, "heads": 2}, "--width 33 cannot be split over --heads 2"),
        ({"width": 32}, "give all three, or --target-params alone"),
        ({"width": -32, "layers": 2, "heads": 1}, "--width must be 1 or more, got -32"),
        ({"warmup_steps": -1}, "--warmup-steps must be 0 or more, got -1"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0 and finite, got 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0 and finite, got nan"),
        ({"stride": 200, "seq_len": 64}, "--stride 200 is longer than --seq-len 64"),
        ({"clip_norm": -1.0}, "--clip-norm must be 0 or more and finite, got -1"),
        ({"weight_decay": float("inf")}, "--weight-decay must be 0 or more and finite, got inf"),
        ({"beta2": 1.0}, "--beta2 must be 0 or more and below 1, got 1"),
    ],
)
def test_a_wrong_field_is_refused_by_its_option_and_value(fields, words):
    with pytest.raises(RecipeError, match=words):
        _ = made("stories", **fields).hints


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"kind": "os.system", "fields": {}, "parts": {"recipe": "os.system"}}, "no recipe called 'os.system'"),
        ({"kind": "stories", "fields": {}, "parts": STORIES | {"data": "os.system"}}, "no data called 'os.system'"),
        ({"kind": "stories", "fields": {}, "parts": STORIES | {"data": "eigen"}}, "no data called 'eigen'"),
        ({"kind": "stories", "fields": {"exec": "rm"}, "parts": STORIES}, "has no option exec"),
        ({"kind": "stories", "fields": {"batch_size": 0}, "parts": STORIES}, "--batch-size"),
    ],
)
def test_a_saved_recipe_that_is_not_ours_is_refused(saved, words):
    with pytest.raises(RecipeError, match=words):
        from_dict(saved)


def test_differences_are_named_with_both_values():
    one = made("stories", steps=5)
    assert differences(one, one.replace(seq_len=64, seed=1)) == {"seq_len": (128, 64), "seed": (42, 1)}


def test_more_steps_than_a_run_can_count_are_refused():
    with pytest.raises(RecipeError, match=r"3,000,000,000 steps, and a run has at most 2,147,483,647: lower --epochs"):
        Prepared(steps=3 * 10**9, steps_per_epoch=10.0)


@pytest.mark.parametrize(("wrong", "hint"), [("stepps", ": did you mean steps"), ("zzz", "; it has target_params, ")])
def test_a_misspelt_field_is_answered_where_a_recipe_is_copied_with_it(wrong, hint):
    with pytest.raises(RecipeError, match=f"has no option {wrong}{hint}"):
        preset("code").replace(**{wrong: 3})


@pytest.mark.parametrize("role", ["model", "data", "optimizer", "length"])
@pytest.mark.parametrize("value", [3, plimsoll.AdamW, "lamb"])
def test_what_is_no_part_is_refused(role, value):
    with pytest.raises(RecipeError, match=f"^{role} "):
        preset("stories").replace(**{role: value})


def test_an_optax_transformation_becomes_the_optimizer():
    recipe = preset("stories").replace(optimizer=optax.lamb(1e-2), steps=7)
    assert isinstance(recipe.optimizer, Optax)
    assert recipe.length.steps == 7


def test_options_are_those_of_the_new_parts():
    recipe = preset("stories").replace(optimizer=plimsoll.Lion(), beta2=0.5)
    assert recipe.optimizer.beta2 == 0.5
    with pytest.raises(RecipeError, match="has no option eps"):
        recipe.replace(optimizer=plimsoll.Lion(), eps=1e-8)


@pytest.mark.parametrize("name", PRESETS)
def test_a_warm_up_that_nobody_asked_for_is_a_tenth_of_the_run_at_most(name):
    recipe = preset(name)
    for steps in (1, 3, 25, 200, 5_000, 100_000):
        for given in (recipe, overridden(recipe, {"steps": steps})):
            assert warmed_up(given, steps) <= max(1, round(steps / 10))
    assert warmed_up(overridden(recipe, {"warmup_steps": 70}), 100) == 70, "a typed one is as long as it says"
    assert warmed_up(recipe.replace(warmup_steps=70), 100) == 70


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
    return recipe.optimizer.warmup(steps)
