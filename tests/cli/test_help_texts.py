"""What help says: within 80 columns, options in groups, each with a text and its default, and a whole example."""

import contextlib
import dataclasses
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from plimsoll.cli.completion import BY_RECIPE, OTHERS, completion
from plimsoll.cli.evaluate import EvaluatePretrained
from plimsoll.cli.examples import EXAMPLES, OF_PRETRAINED, example
from plimsoll.cli.help import GROUPS, MOST_USED, options_shown
from plimsoll.cli.main import COMMANDS, main, usage
from plimsoll.cli.options import PlanOptions
from plimsoll.cli.parse import parse
from plimsoll.cli.prepare import every_options
from plimsoll.cli.sample import SamplePretrained
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
LEFT_OUT = re.compile(
    r"\(default: |\(required\)|[Bb]y default|Left out|Without it|[Oo]nly (with|for)|Planning needs none|[Ff]or --"
)
"""Words that say what leaving an option out means."""
UNITS = {
    "--memory": "MiB",
    "--host-memory": "host",
    "--max-minutes": "minutes",
    "--log-every": "Steps",
    "--save-every": "Steps",
    "--eval-every": "Steps",
    "--seq-len": "Tokens",
    "--warmup-steps": "steps",
    "--loss-chunk": "Tokens",
    "--optimizer-bits": "Bits",
}
"""A word that each of these says its unit with."""


def said(words, capsys):
    """Returns the help, in COLUMNS columns."""
    with contextlib.suppress(SystemExit):
        assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


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
def test_help_fits_and_says_defaults(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = said(words, capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "Example: plimsoll" in text
    found = options(text)
    assert found or words == ["prepare"]
    for option in found:
        assert not NO_TEXT.match(option), option
        assert "None" not in option, option


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_every_value_that_may_be_left_out_says_what_that_means(words):
    kind, recipe = kind_of(words)
    for option in options_shown(kind, recipe):
        takes_a_value = " " in option.usage.replace(", ", ",")
        if takes_a_value and option.group not in ("arguments", "levers"):  # the help says it of all levers at once
            assert LEFT_OUT.search(option.text), option


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
def test_recipes_have_the_most_used_options_first_and_named_groups(preset, capsys):
    text = said(["train", preset], capsys)
    titles = [line.partition(":")[0] for line in text.splitlines() if re.match("[a-z][a-z ]*(: |$)", line)][1:]
    assert titles == ["most used", "model", "data", "optimizer", "run", "levers"]
    most_used = text.partition("most used\n")[2].partition("\n\n")[0]
    assert len(options(most_used)) == 10
    assert {"--memory", "--run", "--steps", "--learning-rate"} <= {line.split()[0] for line in options(most_used)}


def test_fields_of_a_recipe_of_ones_own_are_a_group(capsys):
    text = said(["train", str(OWN)], capsys)
    assert "recipe: fields of this recipe\n  --" in text


def test_every_name_in_a_group_is_a_field_of_a_recipe():
    known = {field.name for name in PRESETS for field in dataclasses.fields(preset(name))}
    known |= {field.name for field in dataclasses.fields(OwnRecipe)}
    assert set().union(*GROUPS.values()) - known == set()
    known |= {field.name for kind in BY_RECIPE.values() for field in dataclasses.fields(kind)}
    assert {*MOST_USED} - known == set()


def test_both_forms_of_a_flag_that_is_on_are_shown_and_parsed(capsys):
    assert "--tied, --no-tied" in said(["plan", "stories"], capsys)
    recipe = preset("stories")
    for words, tied in (([], True), (["--no-tied"], False), (["--tied"], True)):
        assert parse(PlanOptions, words, program="plimsoll plan stories", recipe=recipe).recipe.tied is tied


def test_a_field_without_a_source_has_no_text():
    kind = dataclasses.make_dataclass("Made", [("steps", int, 3)])
    assert [(option.usage, option.text) for option in options_shown(kind)] == [("--steps INT", " (default: 3)")]


def kind_of(words):
    """Returns the dataclass of a command's options, and the recipe that it takes."""
    name, *rest = words
    if rest == ["--pretrained"]:
        return {"evaluate": EvaluatePretrained, "sample": SamplePretrained}[name], None
    if name in BY_RECIPE:
        return BY_RECIPE[name], preset(rest[0] if rest else "stories")
    return every_options()[rest[0]] if rest else OTHERS.get(name, EvaluatePretrained), None


def test_options_in_units_name_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = {option.split()[0]: option for option in options(said(["plan", "stories"], capsys))}
    texts |= {option.split()[0]: option for option in options(said(["train", "stories"], capsys))}
    assert [flag for flag, unit in UNITS.items() if unit not in texts[flag]] == []


@pytest.mark.parametrize("columns", ["40", "200"])
def test_help_can_be_read_in_other_terminals(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "--temperature" in said(["sample"], capsys)


def test_the_usage_fits():
    assert max(map(len, usage().splitlines())) <= 80


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
    "prepare rec": {"recommend"},
    "evaluate --ste": {"--step"},
    "evaluate ": {"runs/first", "runs/deep/second"},
    "evaluate runs/f": {"runs/first"},
    "train stories --run runs/d": {"runs/deep/second"},
    "plan stories --chip rtx409": {"rtx4090"},
    "chips h2": {"h200"},
    "plan code --remat ": {"none", "dots", "block", "offload"},
    "plan code --remat b": {"block"},
    "train stories --batch-size ": set(),
    "train stories --memory 1GiB --ev": {"--eval-every"},
    "plan sudoku-4x4 --numerics m": {"mixed"},
    "train stories --dataset-id tex": {"text.txt"},
    "prepare sudoku --j": {"--json"},
    "runs --j": {"--json"},
    "plan maze --ha": {"--halt-max-steps", "--halt-exploration"},
}


@pytest.mark.parametrize("words", TYPED)
def test_bash_completes(words, script, tmp_path):
    file = tmp_path / "plimsoll"
    file.write_text(script)
    for run in ("runs/first", "runs/deep/second", "runs/deep/below/too-far"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "recipe.json").touch()
    (tmp_path / "text.txt").touch()
    asked = ["plimsoll", *words.split(), *(["''"] if words.endswith(" ") else [])]
    program = (
        f"source {shlex.quote(str(file))}; COMP_WORDS=({' '.join(asked)}); COMP_CWORD={len(asked) - 1};"
        f" COMP_LINE={shlex.quote(' '.join(asked))}; COMP_POINT=${{#COMP_LINE}}; _plimsoll;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600
    )
    assert set(done.stdout.split("\n")) - {""} == TYPED[words]


def test_the_script_is_short_and_has_every_recipe(script):
    assert len(script) < 100_000
    assert all(f'"train {name}"' in script for name in PRESETS)


def test_completion_knows_every_command():
    assert {"plan", "train", "ladder", "prepare", *OTHERS} == set(COMMANDS)


@pytest.mark.parametrize("words", [[], ["zsh"], ["bash", "more"]])
def test_another_shell_is_refused(words):
    with pytest.raises(RecipeError, match="plimsoll completion bash`, got"):
        completion(words)
