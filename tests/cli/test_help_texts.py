"""What help says: `-h` on a screen, `--help` in groups with a text and a default each, and a whole example."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path

import pytest

from plimsoll.cli.complete import candidates
from plimsoll.cli.help import OFTEN, OFTEN_OF
from plimsoll.cli.main import COMMANDS, main
from plimsoll.cli.options import LadderOptions, PlanOptions, TrainOptions
from plimsoll.cli.parse import ALIASES, parse_with_recipe
from plimsoll.levers.registry import LEVERS
from plimsoll.options import flag_of, options_of
from plimsoll.recipes.flat import rows
from plimsoll.recipes.own.recipe import OwnRecipe
from plimsoll.recipes.registered import PRESETS, preparations
from plimsoll.recipes.registry import preset as registry_preset

OWN = Path(__file__).resolve().parents[2] / "docs/examples/equinox_mlp.py"
PLANNING = ["plan", "train", "ladder"]
ASKED = [
    *([name] for name in COMMANDS),
    *(["train", preset] for preset in PRESETS),
    *(["prepare", what] for what in preparations()),
]
NO_TEXT = re.compile(r"(?:--\S+,? ?)+(?:\{\S+\}|[A-Z|\[\]{}.]+| )*(\((default|required)|$)")


@cache
def said(*words):
    """Returns the help."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        assert main([*words]) == 0
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
    text = said(*words, "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert re.search("Example:[ \n]plimsoll", text)
    found = options(text)
    assert found or words == ["prepare"]
    for option in found:
        assert not NO_TEXT.match(option), option
        assert "None" not in option, option


@pytest.mark.parametrize("command", PLANNING)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_short_help_is_a_screen_with_ten_options(command, preset):
    lines = said(command, preset, "-h").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines if line.startswith("  --")]
    assert len(shown) == 10
    assert {"--memory", "--chip"} <= {*shown}
    first = [flag_of(name) for name in PRESETS[preset].often if command != "ladder" or name not in LEVERS]
    assert shown[: len(first)] == first
    text = "\n".join(lines)
    assert f"plimsoll {command} {preset} --" in text
    assert all(f"{group} (" in text for group in ("model", "data", "optimizer", "length"))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_short_help_of_config_shows_the_recipes_own_options(preset):
    lines = said("config", preset, "-h").splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  --")]
    text = " ".join(lines)
    own = {option.name for option in rows(registry_preset(preset))}
    first = [flag_of(name) for name in PRESETS[preset].often if name in own]
    assert shown[: len(first)] == first
    assert {*shown} <= {flag_of(name) for name in own}
    assert f"plimsoll config {preset} > mine.toml" in text
    assert "--help length" in text


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_every_short_help_is_a_screen(words):
    lines = said(*words, "-h").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_frozen_bits_stand_first_in_finetune():
    assert "\n  --frozen-bits" in said("train", "finetune", "-h").partition("--pretrained")[0]


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_used_often_is_an_option_of_the_recipe_or_a_lever(name):
    known = {option.name for option in rows(registry_preset(name))} | LEVERS.keys()
    assert {*PRESETS[name].often} <= known
    assert len({*PRESETS[name].often}) == 7


@pytest.mark.parametrize("preset", PRESETS)
def test_recipes_have_what_is_used_often_first_and_named_groups(preset):
    text = said("train", preset, "--help")
    titles = [line.partition(":")[0] for line in text.splitlines() if re.match("[a-z][a-z ]*(: |$)", line)][1:]
    assert titles == ["often used", "model", "data", "optimizer", "length", "plan", "run", "processes", "levers",
                      "also accepted"]  # fmt: skip
    often = text.partition("often used\n")[2].partition("\n\n")[0]
    assert len(options(often)) == 10
    assert all(flag in text for flag in ALIASES)


def test_one_group_is_shown_alone():
    shown = {line.split()[0] for line in options(said("train", "stories", "--help", "optimizer"))}
    assert {"--learning-rate", "--beta2", "--clip-norm"} <= shown
    assert not shown & {"--width", "--memory", "--remat"}
    assert "--remat" in said("plan", "stories", "--help", "levers")


def test_the_rungs_of_a_ladder_and_what_a_published_model_takes_are_listed():
    assert "rungs: plain, save, micro-batch, " in said("ladder", "stories", "--help")
    for command in ("evaluate", "sample"):
        assert {"--pretrained", "--frozen-bits"} <= {line.split()[0] for line in options(said(command, "--help"))}
    assert "--text FILE" in said("evaluate", "--help")


def test_values_are_called_what_they_are():
    text = said("train", "code", "--help")
    for usage in ("--memory SIZE", "--chip CHIP", "--run FOLDER", "--within TIME", "--steps N", "--learning-rate X"):
        assert f"  {usage} " in text or f"  {usage}\n" in text
    assert not re.search(r" (STR|INT|FLOAT)\b", text)


def test_fields_of_a_recipe_of_ones_own_are_a_group():
    text = said("train", str(OWN), "--help")
    assert "recipe: fields of this recipe\n  --" in text
    assert all(words in text for words in ("--width", "Of the hidden layer.", "--shuffle", "--batch-size"))


def test_every_name_in_a_list_is_an_option():
    known = {option.name for name in PRESETS for option in rows(registry_preset(name))}
    known |= {option.name for option in options_of(OwnRecipe)}
    assert {*OFTEN} - known == set()
    for command, kind in {"plan": PlanOptions, "train": TrainOptions, "ladder": LadderOptions}.items():
        assert {*OFTEN_OF[command]} <= {option.name for option in options_of(kind)}


def test_both_forms_of_a_flag_that_is_on_are_shown_and_parsed():
    assert "--tied, --no-tied" in said("plan", "stories", "--help")
    for words, tied in (([], True), (["--no-tied"], False), (["--tied"], True)):
        assert parse_with_recipe(PlanOptions, ["stories", *words], command="plan").recipe.model.tied is tied


@pytest.mark.parametrize("value", ["-x", "--no-such-option", "-1e-3", "a = b", ""])
def test_a_value_may_begin_with_a_hyphen(value):
    typed = parse_with_recipe(PlanOptions, ["stories", "--dataset-config", value, "--floor"], command="plan")
    assert (typed.recipe.data.dataset_config, typed.options.floor) == (value, True)


def test_every_command_has_its_example():
    for name, command in COMMANDS.items():
        assert command.example.startswith(f"plimsoll {name}") or command.takes_recipe
    for what, preparation in preparations().items():
        assert preparation.example.startswith(f"plimsoll prepare {what} ")


TYPED = {
    "plimsoll tr": {"train"},
    "plimsoll train sudoku-": {"sudoku-4x4", "sudoku-6x6", "sudoku-attention", "sudoku-mlp"},
    "plimsoll train stories --ba": {"--batch-size"},
    "plimsoll evaluate --ste": {"--step"},
    "plimsoll evaluate ": {"runs/first", "runs/deep/second"},
    "plimsoll train stories --run runs/d": {"runs/deep/second"},
    "plimsoll plan stories --chip rtx409": {"rtx4090"},
    "plimsoll chips rtx409": {"rtx4090"},
    "plimsoll plan code --remat ": {"none", "dots", "block", "offload"},
    "plimsoll plan code --remat=b": {"block"},
    "plimsoll train stories --batch-size ": set(),
    "plimsoll train stories --memory 1GiB --ev": {"--eval-every"},
    "plimsoll train stories --dataset-id tex": set(),
    "plimsoll prepare sud": {"sudoku"},
    "plimsoll prepare sudoku --j": {"--json"},
    "plimsoll train nothing --j": set(),
    "plimsoll nothing ": set(),
}


@pytest.mark.parametrize("line", TYPED)
def test_a_tab_completes(line, tmp_path, monkeypatch):
    for run in ("runs/first", "runs/deep/second", "runs/deep/below/too-far"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "recipe.json").touch()
    monkeypatch.chdir(tmp_path)
    assert {*candidates(line)} == TYPED[line]


def test_the_shell_hands_over_the_line_and_the_cursor(capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "plimsoll train sudoku-4x4 --memory 1GiB")
    monkeypatch.setenv("COMP_POINT", str(len("plimsoll tra")))
    assert main(["complete", "plimsoll", "tra", "plimsoll"]) == 0
    assert capsys.readouterr().out == "train\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_completes_its_options(name):
    subject = {"prepare": "sudoku"}.get(name, "code" if COMMANDS[name].takes_recipe else "")
    assert candidates(f"plimsoll {name} {subject} --".replace("  ", " "))
