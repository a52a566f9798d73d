"""The commands of a report, typed in again, are the run's own recipe."""

import shlex
from dataclasses import replace

import pytest

from plimsoll.api.commands import base_of, continue_command, repeat_command, use_commands
from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse_with_recipe
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import chosen_fields, to_dict
from plimsoll.units import GIB
from report_examples import PLANNED


def typed(command):
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("plimsoll", "train")
    return parse_with_recipe(TrainOptions, words, command="train")


def planned(name, *, budget=GIB, chip="cpu"):
    plan = replace(PLANNED.plan, chip=chip)
    return replace(PLANNED, recipe=name, plan=plan, ledger=replace(PLANNED.ledger, budget_bytes=budget))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_comes_back_by_its_name(name):
    recipe = preset(name).replace(seed=7, batch_size=24)
    found = typed(repeat_command(RunFolder("/runs/a b"), to_dict(recipe), planned(name)))
    assert found.recipe == recipe
    assert found.name == name
    assert found.options.run == "/runs/a b-again"
    assert chosen_fields(to_dict(recipe), base_of(to_dict(recipe), name)[1])["seed"] == 7


def test_booleans_none_and_odd_characters_come_back():
    recipe = preset("code").replace(use_streaming=False, dataset_id="my 'texts' $HOME", steps=None, epochs=2.5)
    found = typed(repeat_command(RunFolder("/runs/x"), to_dict(recipe), planned("code")))
    assert found.recipe == recipe


def test_a_run_that_python_named_is_told_by_its_kind():
    recipe = preset("sudoku-4x4").replace(seed=3)
    found = typed(repeat_command(RunFolder("/runs/x"), to_dict(recipe), planned("my experiment")))
    assert found.name in PRESETS
    assert found.recipe == recipe


def test_a_repetition_takes_the_same_plan_and_budget_beside_it():
    command = repeat_command(RunFolder("/runs/x"), to_dict(preset("code")), planned("code"))
    options = typed(command).options
    assert (options.memory, options.plan, options.run) == ("1024MiB", "/runs/x/plan.json", "/runs/x-again")
    assert options.chip == "cpu"  # where there is a card, it would be the default
    odd = planned("code", budget=GIB + 1, chip="h200")
    options = typed(repeat_command(RunFolder("/runs/x"), to_dict(preset("code")), odd)).options
    assert (options.memory, options.chip) == (str(GIB + 1), "h200")


def test_a_recipe_of_the_users_own_is_named_by_its_file():
    saved = {"kind": "file", "file": "/home/me/my.py", "name": "large", "fields": {"width": 3, "shuffle": True}}
    command = repeat_command(RunFolder("/runs/x"), saved, planned("my-large"))
    assert command.startswith("plimsoll train /home/me/my.py:large --width 3 --shuffle --memory 1024MiB ")


def test_a_run_continues_by_its_folder():
    assert continue_command(RunFolder("/runs/a b"), to_dict(preset("code"))) == "plimsoll resume '/runs/a b'"
    assert continue_command(RunFolder("/runs/x"), {"kind": "file", "name": "mine", "code": {}, "data": ""}) is None


def test_what_it_can_be_used_for_follows_from_what_it_shows():
    assert use_commands(RunFolder("/runs/x"), preset("code").model.uses.shown)[1] == "plimsoll sample /runs/x"
    assert (
        use_commands(RunFolder("/runs/x"), preset("control").model.uses.shown)[1]
        == "plimsoll evaluate /runs/x --closed-loop"
    )
