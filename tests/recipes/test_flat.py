"""What a user gives counts, and what a preset says of the same in other words gives way."""

import pytest

from plimsoll import preset
from plimsoll.cli.options import PlanOptions
from plimsoll.cli.parse import parse_with_recipe
from plimsoll.errors import RecipeError
from plimsoll.recipes.flat import giving_way
from plimsoll.recipes.registered import PRESETS


def typed(capsys, *words):
    recipe = parse_with_recipe(PlanOptions, list(words), command="plan").recipe
    return recipe, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        (
            ["code", "--target-params", "5M"],
            {"target_params": 5_000_000, "width": None, "layers": None, "heads": None, "vocab_size": 4_096},
            "--width 128, --layers 4, --heads 4 give way to --target-params",
        ),
        (["code", "--target-params", "1M"], {"width": None}, "give way to --target-params"),  # the class's own default
        (["code", "--largest", "target-params"], {"width": None, "layers": None}, "give way to --target-params"),
        (["code", "--epochs", "2"], {"steps": None, "epochs": 2.0, "width": 128}, "--steps 600 gives way to --epochs"),
        (["code", "--epochs", "None"], {"steps": 600, "epochs": None}, ""),
        (["code", "--steps", "9"], {"steps": 9, "width": 128}, ""),
        (["code", "--width", "64"], {"width": 64, "layers": 4, "heads": 4}, ""),
        (
            ["recommend-debug", "--pretrained", "google/gemma-2b"],
            {"pretrained": "google/gemma-2b", "width": None},
            "--width 128 gives way to --pretrained",
        ),
        (["recommend-debug", "--pretrained", "none"], {"width": 128}, ""),
        (
            ["recommend-gemma-2b", "--width", "64"],
            {"pretrained": "none", "width": 64},
            "--pretrained google/gemma-2b gives way to --width",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_option_that_was_typed_beats_what_the_preset_says(capsys, words, fields, said):
    recipe, heard = typed(capsys, *words)
    assert {name: recipe.options[name] for name in fields} == fields
    assert (said in heard) if said else not heard


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_refuses_an_option_for_what_it_says_itself(name):
    recipe = preset(name)
    values = {"steps": 7, "epochs": 1.5, "target_params": 2_000_000, "pretrained": "google/gemma-2b", "layers": 3}
    others_of = {name: others for part in recipe.parts.values() for name, others in part.gives_way.items()}
    given = {option: value for option, value in values.items() if option in others_of}
    assert {"steps", "epochs"} <= given.keys()
    for option, value in given.items():
        others = {} if option != "layers" or recipe.kind != "stories" else {"width": 64, "heads": 2}
        changed = preset(name, **{option: value}, **others)
        assert changed.options[option] == value
        assert all(changed.options[other] == nothing for other, nothing in others_of[option].items())
    for option, instead in others_of.items():
        assert {option, *instead} <= recipe.options.keys()
        changed, _ = giving_way(recipe, {option: "a value"})
        assert recipe.replace(**instead) == changed


def test_a_tokenizer_brings_its_own_vocabulary():
    changed, said = giving_way(preset("code"), {"tokenizer": "mine.json"})
    assert (changed.data.vocab_size, said) == (None, "--vocab-size 4,096 gives way to --tokenizer")
    kept, said = giving_way(preset("code"), {"tokenizer": "mine.json", "vocab_size": 8192})
    assert (kept, said) == (preset("code"), "")


def test_two_that_were_typed_are_refused(capsys):
    for words in (
        ["--target-params", "2M", "--width", "64"],
        ["--target-params", "1M", "--width", "64"],  # the default
        ["--steps", "3", "--epochs", "2"],
    ):
        with pytest.raises(RecipeError, match=r"leave one of the two out|both set the length"):
            typed(capsys, "code", *words)
    with pytest.raises(RecipeError, match=r"--target-params 2,000,000 beside a shape of --width 64, .*: leave one"):
        preset("code", target_params=2_000_000, width=64)


def test_in_python_a_misspelt_option_has_a_hint():
    changed = preset("code", target_params=5_000_000)
    assert changed.model.shape(changed.spec).width > 128
    with pytest.raises(RecipeError, match=r"no option target_param: did you mean target_params\?"):
        preset("code", target_param=5_000_000)
    with pytest.raises(RecipeError, match=r"preset\(NAME, target_params=5000000\) gives up the preset's shape"):
        preset("code").replace(target_params=5_000_000)
