"""What help says: within 80 columns, options in groups, each with a text and its default, and a whole example."""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from plimsoll.cli.completion import BY_RECIPE, OTHERS, completion
from plimsoll.cli.examples import EXAMPLES, OF_PRETRAINED, example
from plimsoll.cli.help import GROUPS, MOST_USED
from plimsoll.cli.main import COMMANDS, main
from plimsoll.cli.options import PlanOptions
from plimsoll.cli.parse import parse
from plimsoll.cli.prepare import every_options
from plimsoll.errors import RecipeError
from plimsoll.recipes.own.recipe import OwnRecipe
from plimsoll.recipes.registry import PRESETS, preset

OWN = Path(__file__).resolve().parents[2] / "docs/examples/equinox_mlp.py"

ASKED = [
    *([name] for name in COMMANDS),
    *(["train", preset] for preset in PRESETS),
    *(["prepare", what] for what in every_options()),
    *([name, "--pretrained"] for name in OF_PRETRAINED),
]
NO_TEXT = re.compile(r"(?:--\S+,? ?)+(?:\{\S+\}|[A-Z|\[\]{}.]+| )*(\((default|required)|$)")


@cache
def said(*words):
    """Returns the help, in 80 columns."""
    with (
        mock.patch.dict(os.environ, COLUMNS="80"),
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.suppress(SystemExit),
    ):
        assert main([*words, "--help"]) == 0
    return printed.getvalue()


def options(text):
    """Each option's flags, text and default, on one line."""
    found = []
    for line in text.splitlines():
        if re.match(r"  --[a-z]", line):
            found.append(line.strip())
        elif found and line.startswith("    "):
            found[-1] += f" {line.strip()}"
    return found


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_help_fits_and_says_defaults(words):
    text = said(*words)
    assert max(map(len, text.splitlines())) <= 80
    assert "Example: plimsoll" in text
    found = options(text)
    assert found or words == ["prepare"]
    for option in found:
        assert not NO_TEXT.match(option), option
        assert "None" not in option, option


@pytest.mark.parametrize("preset", PRESETS)
def test_the_example_of_training_lacks_nothing_but_its_files(preset, tmp_path, monkeypatch, capsys):
    """It gets as far as looking for the first file that it names; `code` needs none."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example(f"plimsoll train {preset}"))
    if preset == "code":
        assert words[:4] == ["plimsoll", "train", "code", "--memory"]
        return
    assert main(words[1:]) == 2
    refusal = capsys.readouterr().err
    files = [word for word in words if word.endswith(("/", ".h5", ".jsonl"))]
    assert any(file in refusal or str(tmp_path / file) in refusal for file in files), refusal


@pytest.mark.parametrize("preset", PRESETS)
def test_recipes_have_the_most_used_options_first_and_named_groups(preset):
    text = said("train", preset)
    titles = [line.partition(":")[0] for line in text.splitlines() if re.match("[a-z][a-z ]*(: |$)", line)][1:]
    assert titles == ["most used", "model", "data", "optimizer", "run", "levers"]
    most_used = text.partition("most used\n")[2].partition("\n\n")[0]
    assert len(options(most_used)) == 10
    assert {"--memory", "--run", "--steps", "--learning-rate"} <= {line.split()[0] for line in options(most_used)}


def test_fields_of_a_recipe_of_ones_own_are_a_group():
    text = said("train", str(OWN))
    assert "recipe: fields of this recipe\n  --" in text
    assert all(words in text for words in ("--width", "Of the hidden layer.", "--shuffle", "--batch-size"))


def test_every_name_in_a_group_is_a_field_of_a_recipe():
    known = {field.name for name in PRESETS for field in dataclasses.fields(preset(name))}
    known |= {field.name for field in dataclasses.fields(OwnRecipe)}
    assert set().union(*GROUPS.values()) - known == set()
    known |= {field.name for kind in BY_RECIPE.values() for field in dataclasses.fields(kind)}
    assert {*MOST_USED} - known == set()


def test_both_forms_of_a_flag_that_is_on_are_shown_and_parsed():
    assert "--tied, --no-tied" in said("plan", "stories")
    recipe = preset("stories")
    for words, tied in (([], True), (["--no-tied"], False), (["--tied"], True)):
        assert parse(PlanOptions, words, program="plimsoll plan stories", recipe=recipe).recipe.tied is tied


def test_every_command_has_its_example():
    assert {*EXAMPLES, "prepare"} == set(COMMANDS)
    for what in every_options():
        assert example(f"plimsoll prepare {what}").startswith(f"plimsoll prepare {what} ")


@pytest.fixture(scope="module")
def script():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert completion(["bash"]) == 0
    return out.getvalue()


TYPED = {
    "tr": {"train"},
    "train sudoku-": {"sudoku-4x4", "sudoku-6x6", "sudoku-attention", "sudoku-mlp"},
    "train stories --ba": {"--batch-size"},
    "evaluate --ste": {"--step"},
    "evaluate ": {"runs/first", "runs/deep/second"},
    "train stories --run runs/d": {"runs/deep/second"},
    "plan stories --chip rtx409": {"rtx4090"},
    "plan code --remat ": {"none", "dots", "block", "offload"},
    "plan code --remat b": {"block"},
    "train stories --batch-size ": set(),
    "train stories --memory 1GiB --ev": {"--eval-every"},
    "train stories --dataset-id tex": {"text.txt"},
    "prepare sudoku --j": {"--json"},
}


def completing(words):
    """The line of a shell that completes these words, and prints what it finds in one line."""
    asked = ["plimsoll", *words.split(), *(["''"] if words.endswith(" ") else [])]
    return (
        f"COMP_WORDS=({' '.join(asked)}); COMP_CWORD={len(asked) - 1}; COMP_LINE={shlex.quote(' '.join(asked))};"
        ' COMP_POINT=${#COMP_LINE}; _plimsoll; echo "${COMPREPLY[@]}"'
    )


def test_bash_completes(script, tmp_path):
    (tmp_path / "plimsoll").write_text(script)
    for run in ("runs/first", "runs/deep/second", "runs/deep/below/too-far"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "recipe.json").touch()
    (tmp_path / "text.txt").touch()
    program = "\n".join(["source ./plimsoll", *map(completing, TYPED)])
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600
    )
    found = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip(TYPED, found, strict=True)) == TYPED


def test_the_script_is_short_and_has_every_recipe(script):
    assert len(script) < 100_000
    assert all(f'"train {name}"' in script for name in PRESETS)


def test_completion_knows_every_command():
    assert {"plan", "train", "ladder", "prepare", *OTHERS} == set(COMMANDS)


@pytest.mark.parametrize("words", [[], ["zsh"], ["bash", "more"]])
def test_another_shell_is_refused(words):
    with pytest.raises(RecipeError, match="plimsoll completion bash`, got"):
        completion(words)
