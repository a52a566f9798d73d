"""The commands of a report, typed in again, are the run's own recipe."""

import dataclasses
import shlex

import pytest

from plimsoll.api.commands import chosen_fields, continue_command, repeat_command, use_commands
from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse, take_recipe
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.registry import PRESETS, preset
from plimsoll.recipes.saved import to_dict
from plimsoll.units import GIB


def typed(command):
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("plimsoll", "train")
    name, recipe, rest = take_recipe(words, command="train")
    return name, parse(TrainOptions, rest, program="plimsoll train", recipe=recipe)


def planned(name, **changes):
    return {"recipe": name, "budget_bytes": GIB, "plan": {"chip": "cpu"}, **changes}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_comes_back_by_its_name(name):
    recipe = dataclasses.replace(preset(name), seed=7, batch_size=24)
    command = continue_command(RunFolder("/runs/a b"), to_dict(recipe), planned(name))
    found, options = typed(command)
    assert options.recipe == recipe
    assert found == name
    assert options.run == "/runs/a b"
    assert chosen_fields(to_dict(recipe), name)["seed"] == 7


def test_booleans_none_and_odd_characters_come_back():
    recipe = dataclasses.replace(
        preset("code"), use_streaming=False, dataset_id="my 'texts' $HOME", steps=None, epochs=2.5
    )
    _, options = typed(continue_command(RunFolder("/runs/x"), to_dict(recipe), planned("code")))
    assert options.recipe == recipe


def test_a_run_that_python_named_is_told_by_its_kind():
    recipe = dataclasses.replace(preset("sudoku-4x4"), seed=3)
    name, options = typed(continue_command(RunFolder("/runs/x"), to_dict(recipe), planned("my experiment")))
    assert name in PRESETS
    assert options.recipe == recipe


def test_a_repetition_takes_the_same_plan_and_budget_beside_it():
    command = repeat_command(RunFolder("/runs/x"), to_dict(preset("code")), planned("code"))
    _, options = typed(command)
    assert (options.memory, options.plan, options.run) == ("1024MiB", "/runs/x/plan.json", "/runs/x-again")
    assert options.chip == "cpu"  # where there is a card, it would be the default
    odd = planned("code", budget_bytes=GIB + 1, plan={"chip": "h200"})
    _, options = typed(repeat_command(RunFolder("/runs/x"), to_dict(preset("code")), odd))
    assert (options.memory, options.chip) == (str(GIB + 1), "h200")


def test_a_recipe_of_the_users_own_is_named_by_its_file():
    saved = {"kind": "file", "file": "/home/me/my.py", "name": "large", "fields": {"width": 3, "shuffle": True}}
    command = continue_command(RunFolder("/runs/x"), saved, planned("my-large"))
    assert command == "plimsoll train /home/me/my.py:large --width 3 --shuffle --run /runs/x"


def test_what_it_can_be_used_for_follows_from_what_it_shows():
    assert use_commands(RunFolder("/runs/x"), preset("code").shown)[1] == "plimsoll sample /runs/x"
    assert use_commands(RunFolder("/runs/x"), preset("control").shown)[1] == "plimsoll evaluate /runs/x --closed-loop"
