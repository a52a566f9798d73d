"""Options: their rows, what is no value of theirs, and what is outside of its bounds."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest

from plimsoll.errors import RecipeError
from plimsoll.options import (
    Argument,
    Count,
    FilePath,
    Ge,
    Interval,
    Metavar,
    Options,
    Seed,
    options_of,
    value_of,
)


@dataclass(frozen=True, kw_only=True)
class Place(Options):
    group = "place"

    memory: Annotated[str | int | None, Metavar("SIZE")] = None
    """Memory budget,
    like 2GiB."""


@dataclass(frozen=True, kw_only=True)
class Example(Place):
    group = "example"

    run: Annotated[str, Argument("RUN")] = ""
    """Folder of the run."""
    batch_size: Annotated[Count, Ge(1)] = 1
    """Examples."""
    steps: Annotated[Count | None, Interval(ge=1, le=2**31 - 1)] = None
    epochs: Annotated[float | None, Interval(gt=0)] = None
    ema_decay: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    learning_rate: Annotated[float, Interval(gt=0, lt=math.inf)] = 1.0
    momentum: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.0
    max_phase: Annotated[float, Interval(gt=0, le=6.25)] = 1.0
    share: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    seed: Seed = 42
    remat: Literal["none", "block"] | None = None
    bits: Literal[32, 8, 4] = 32
    tied: bool = True
    async_save: bool | None = None
    rungs: tuple[str, ...] = ()
    data: FilePath = ""
    rule: object = field(default=None, metadata={"option": False})
    """Function: no option."""


@dataclass(frozen=True, kw_only=True)
class Derived(Example):
    batch_size: Annotated[Count, Ge(1)] = 8


ROWS = {option.name: option for option in options_of(Example)}


def test_a_field_is_a_row_with_its_text_group_and_word():
    memory = ROWS["memory"]
    assert (memory.flag, memory.text, memory.group) == ("--memory", "Memory budget, like 2GiB.", "place")
    assert (ROWS["batch_size"].default, ROWS["batch_size"].group) == (1, "example")
    words = {name: ROWS[name].metavar for name in ("memory", "run", "batch_size", "epochs", "remat", "data")}
    assert words == {
        "memory": "SIZE",
        "run": "RUN",
        "batch_size": "N",
        "epochs": "X",
        "remat": "{none,block}",
        "data": "FILE",
    }
    assert ROWS["run"].is_argument
    assert [name for name, row in ROWS.items() if row.is_switch] == ["tied"]
    assert "rule" not in ROWS


def test_an_inherited_text_stays_and_an_objects_values_are_the_defaults():
    rows = {option.name: option for option in options_of(Derived)}
    assert (rows["batch_size"].text, rows["batch_size"].default) == ("Examples.", 8)
    rows = {option.name: option for option in options_of(Derived(batch_size=3))}
    assert rows["batch_size"].default == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size must be 1 or more, got 0"),
        ({"batch_size": True}, "--batch-size must be a whole number, got True"),
        ({"batch_size": 2.5}, "--batch-size must be a whole number, got 2.5"),
        ({"steps": 2**31}, "--steps must be 1 or more and at most 2,147,483,647, got 2,147,483,648"),
        ({"epochs": math.nan}, "--epochs must be above 0, got nan"),
        ({"epochs": "3"}, "--epochs must be a number, got '3'"),
        ({"ema_decay": 1.0}, "--ema-decay must be 0 or more and below 1, got 1"),
        ({"learning_rate": math.inf}, "--learning-rate must be above 0 and finite, got inf"),
        ({"momentum": -0.5}, "--momentum must be 0 or more and finite, got -0.5"),
        ({"max_phase": 7.0}, "--max-phase must be above 0 and at most 6.25, got 7"),
        ({"share": 1.0}, "--share must be above 0 and below 1, got 1"),
        ({"seed": -1}, "--seed must be 0 or more and at most 9,223,372,036,854,775,807, got -1"),
        ({"remat": "blok"}, "--remat must be one of none, block, got 'blok'"),
        ({"tied": 1}, "--tied must be True or False, got 1"),
        ({"rungs": "save"}, "--rungs must be a list, got 'save'"),
        ({"batchsize": 3}, "Example has no option batchsize: did you mean batch_size?"),
    ],
)
def test_a_value_of_another_type_or_outside_of_its_bounds_is_refused(options, message):
    with pytest.raises(RecipeError) as refusal:
        Example(**options)
    assert str(refusal.value) == message


def test_numbers_become_pythons_own_and_lists_tuples():
    options = Example(batch_size=np.int64(4), learning_rate=np.float32(0.5), rungs=["a"], run=Path("a"))
    assert json.dumps(dataclasses.asdict(options))
    assert (options.batch_size, options.rungs, options.run) == (4, ("a",), "a")


def test_a_file_that_is_there_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "text.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert Example(data="text.txt").data == str(tmp_path / "text.txt")
    assert Example(data="org/name").data == "org/name"


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("batch_size", "5M", 5_000_000),
        ("batch_size", "-3", -3),
        ("steps", "None", None),
        ("epochs", "1e-3", 0.001),
        ("remat", "block", "block"),
        ("remat", "none", "none"),
        ("bits", "8", 8),
        ("async_save", "False", False),
        ("memory", "768MiB", "768MiB"),
        ("rungs", "save", "save"),
    ],
)
def test_a_word_means_a_value(name, word, value):
    assert value_of(ROWS[name], word) == value


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("batch_size", "many", "--batch-size: the count 'many' cannot be read: .* like 1.3M"),
        ("seed", "many", "--seed takes a whole number, got 'many'"),
        ("epochs", "long", "--epochs takes a number, got 'long'"),
        ("remat", "blocks", "--remat takes one of none, block, got 'blocks'"),
        ("bits", "3", "--bits takes one of 32, 8, 4, got '3'"),
        ("async_save", "perhaps", "--async-save takes True or False, got 'perhaps'"),
    ],
)
def test_a_word_that_means_none_is_refused(name, word, message):
    with pytest.raises(RecipeError, match=f"^{message}$"):
        value_of(ROWS[name], word)
