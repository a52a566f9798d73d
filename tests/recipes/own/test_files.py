# ruff: noqa: E501 (a case is a line)
"""Recipes in a user's files: which one is meant, how it comes back in another process, what is refused."""

import importlib
import json
import os
import subprocess
import sys

import pytest

import plimsoll
from own_files import ONE, SMALL, with_, write
from plimsoll.engine import serve
from plimsoll.errors import RecipeError
from plimsoll.recipes.own import files
from plimsoll.recipes.own.user_code import as_recipe_error
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import differences, from_dict, is_saved_as, name_of, to_dict


@pytest.fixture(autouse=True)
def _path_as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


TWO = SMALL + "small = plimsoll.recipe(**GIVEN, batch_size=4)\nlarge = plimsoll.recipe(**GIVEN, batch_size=20)\n"
CLASS = (
    SMALL
    + """
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Mine(plimsoll.OwnRecipe):
    rate: float = 0.1
    init, loss, data = staticmethod(init), staticmethod(loss), staticmethod(data)

    def optimizer(self, steps):
        return optax.sgd(self.rate)

"""
)


def test_the_only_recipe_needs_no_name_and_of_several_the_one_called_recipe_is_meant(tmp_path):
    recipe = preset(write(tmp_path, SMALL + "spirals = plimsoll.recipe(**GIVEN, **FIELDS)"))
    assert (recipe.length.batch_size, recipe.length.steps) == (8, 5)
    assert name_of(recipe) == "mine-spirals"
    path = write(tmp_path, TWO + "recipe = large")
    assert preset(path).length.batch_size == 20
    small, large = preset(path + ":small"), preset(path + ":large")
    assert small.length.batch_size == 4
    assert differences(small, large.replace(batch_size=4)) == {"name": ("small", "large")}


def test_a_file_may_change_a_recipe_of_ours(tmp_path):
    text = "import plimsoll\nmine = plimsoll.preset('code').replace(seed=3)"
    recipe = preset(write(tmp_path, text))
    assert recipe == preset("code").replace(seed=3)
    assert to_dict(recipe)["kind"] == "stories"


def test_the_fields_of_a_class_are_options_and_survive_json(tmp_path):
    recipe = preset(write(tmp_path, CLASS + "recipe = Mine(steps=5)")).replace(rate=0.25, batch_size=2)
    saved = json.loads(json.dumps(to_dict(recipe)))
    assert saved["fields"] == {
        "batch_size": 2, "gradient_accumulation_steps": 1, "steps": 5, "epochs": None, "default_epochs": None,
        "seed": 42, "ema_decay": 0.0, "norm_group": None, "shuffle": True, "rate": 0.25,
    }  # fmt: skip
    assert from_dict(saved) == recipe
    assert is_saved_as(saved, recipe)
    assert differences(from_dict(saved), recipe.replace(rate=0.5)) == {"rate": (0.25, 0.5)}
    other = CLASS.replace("rate: float = 0.1", "rate: tuple = (1,)") + "recipe = Mine()"
    with pytest.raises(RecipeError, match="the field rate of Mine is a tuple: fields are options"):
        to_dict(preset(write(tmp_path, other, "other.py")))


READS_IT = """
import json, sys
from plimsoll.recipes.saved import from_dict, to_dict
print(json.dumps(to_dict(from_dict(json.load(sys.stdin)))))
"""


def test_another_process_finds_the_same_recipe_and_what_lies_beside_it(tmp_path):
    write(tmp_path, "RATE = 0.5\n", "rates.py")
    path = write(tmp_path, "import rates\n" + ONE + "print('imported')")
    saved = to_dict(preset(path).replace(steps=9))
    assert saved["file"] == path
    assert saved["name"] == "recipe"
    assert set(saved["sources"]) == {"mine.py", "rates.py"}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part != str(tmp_path))}
    done = subprocess.run(
        [sys.executable, "-c", READS_IT], input=json.dumps(saved), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == saved  # and what the file prints is no part of the answer
    assert "imported" in done.stderr


@pytest.mark.parametrize("changed", ["mine.py", "rates.py"])
def test_code_that_changed_is_refused_by_its_file(tmp_path, changed):
    write(tmp_path, "RATE = 0.5\n", "rates.py")
    recipe = preset(write(tmp_path, ONE + "def late():\n    import rates\n"))
    saved = to_dict(recipe)
    with open(tmp_path / changed, "a") as file:
        file.write("# another comment\n")
    with pytest.raises(RecipeError, match=rf"{changed} changed since the run began .* put the old content back"):
        from_dict(saved)
    assert not is_saved_as(saved, preset(str(tmp_path / "mine.py")))


def test_a_module_of_the_environment_is_no_source(tmp_path):
    installed = tmp_path / "env/lib/site-packages"
    installed.mkdir(parents=True)
    (installed / "x.py").write_text("")
    assert not files.is_users(installed / "x.py", tmp_path)


NO_RECIPE = {
    "no file": (None, "", "missing.py: name a Python file"),
    "no recipe": (SMALL, "", "mine.py has no recipe in it: add `recipe = plimsoll.recipe("),
    "a class only": (CLASS, "", "or of a class `recipe = YourClass()`"),
    "no such name": (TWO, ":middle", "has no recipe called 'middle': name one of small, large, like"),
    "several": (TWO, "", "has no recipe called 'recipe': name one of small, large, like"),
    "no module": ("import plimsoll\n\nimport nothing_like_it\n", "", "mine.py cannot be imported: ModuleNotFoundError: No module named 'nothing_like_it'\n  mine.py, line 3: `import nothing_like_it`"),
    "no Python": ("def (:\n", "", "mine.py cannot be read as Python: SyntaxError:"),
    "an exit": ("import sys\nsys.exit(3)\n", "", "mine.py cannot be imported: SystemExit: 3\n  mine.py, line 2"),
    "no loss": (SMALL + "recipe = plimsoll.recipe(init=init, data=data, optimizer=None)", "", "mine.py cannot be imported: TypeError: recipe() missing 1 required keyword-only argument: 'loss'"),
    "a misspelt field": (with_(stepps=3), "", "OwnRecipe has no option stepps: did you mean steps?"),
    "no function": (with_(data="[1]"), "", "plimsoll.recipe: data must be a function, got a list"),
    "no optimizer": (with_(optimizer="'adam'"), "", "optimizer must be an optax transformation, a plimsoll.AdamW, or a function"),
    "no such lever": (with_(supported="('speed',)"), "", "frozen_offload, got speed"),
    "a plan of itself": (ONE + "plimsoll.plan(recipe, memory='1GiB')", "", 'put that under `if __name__ == "__main__":`'),
    "a wrong field": (with_(batch_size=0), "", "--batch-size must be 1 or more, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_RECIPE)
def test_a_file_without_the_recipe_is_refused(tmp_path, case):
    text, inside, words = NO_RECIPE[case]
    path = str(tmp_path / "missing.py") if text is None else write(tmp_path, text)
    with pytest.raises(RecipeError) as refused:
        preset(path + inside)
    assert words in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_only_the_users_own_lines_are_shown_and_of_many_the_last(tmp_path):
    write(tmp_path, "import json\n\ndef read():\n    return json.loads('{')\n", "deep.py")
    with pytest.raises(RecipeError, match=r"mine.py cannot be imported: JSONDecodeError") as refused:
        preset(write(tmp_path, "import deep\nx = deep.read()\n"))
    lines = ["  mine.py, line 2: `x = deep.read()`", "  deep.py, line 4, in read: `return json.loads('{')`"]
    assert str(refused.value).splitlines()[1:] == lines
    recursion = "def down(n):\n    if n == 0:\n        raise ValueError('the end')\n    down(n - 1)\n\ndown(38)\n"
    with pytest.raises(RecipeError) as refused:
        preset(write(tmp_path, recursion))
    calls = str(refused.value).splitlines()[1:]
    assert len(calls) == 8
    assert calls[-1] == "  mine.py, line 3, in down: `raise ValueError('the end')`"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/tmp/ipykernel_12/345.py", ["  a cell, line 2, in loss"]),
        ("<stdin>", ["  standard input, line 2, in loss"]),
        ("/usr/lib/python3/json/decoder.py", []),
    ],
)
def test_lines_of_cells_and_of_standard_input_are_the_users_too(tmp_path, file, shown):
    """A notebook prints no traceback of a refusal, so the line that failed has to be in it."""
    names = {}
    exec(compile("def loss():\n    raise ValueError('no')", file, "exec"), names)
    with pytest.raises(RecipeError) as refused, as_recipe_error("loss of your functions failed", tmp_path):
        names["loss"]()
    lines = [line for line in str(refused.value).splitlines() if "test_files.py" not in line]  # this test calls it
    assert lines == ["loss of your functions failed: ValueError: no", *shown]


def test_a_recipe_of_a_notebook_is_in_no_file_in_the_process_that_trains_it_either(monkeypatch):
    names = {"__name__": "__main__"}
    exec(ONE, names)
    monkeypatch.setitem(sys.modules, "__main__", importlib.import_module("plimsoll.worker"))
    assert "code" in to_dict(names["recipe"])
    assert names["recipe"].origin.called == "OwnRecipe"
    with pytest.raises(RecipeError) as refused, names["recipe"].origin.guard("loss"):
        raise ValueError("no")
    assert "user_code.py" not in str(refused.value)  # without lines of ours


def test_an_error_of_the_users_own_code_while_it_is_compiled_is_told_by_its_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def rule(settings):\n    return settings.weight_decy\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(AttributeError) as error:
        scope["rule"](plimsoll.AdamW())
    answer = serve._failure(error.value)
    assert answer.keys() == {"refused"}
    assert answer["refused"].splitlines()[-1] == "  mine.py, line 2, in rule: `return settings.weight_decy`"
    assert serve._failure(ValueError("of a library")) == {"failed": "ValueError: of a library"}
