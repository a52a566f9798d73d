"""Recipes of a package of somebody's: found by its entry point in every process, and never in the way of others."""

import contextlib
import json
import sys

import pytest

from commands import answer, plimsoll
from plimsoll.cli.main import main
from plimsoll.errors import RecipeError
from plimsoll.recipes.registered import BUILT_IN, PRESETS, installed, part_class, presets, reference_of
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import from_dict, to_dict
from recipe_packages import describe, installed_into

PINNED = ["--micro-batch", 16, "--prefetch", 0, "--async-save", False, "--optimizer-bits", 32, "--weight-bits", 32]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that is on the path of this process, and of those that it starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = {name: module for name, module in sys.modules.items() if name.startswith("plimsoll_waves")}
    for name in before:  # another test's copy of the package
        del sys.modules[name]
    installed.cache_clear()
    yield folder
    installed.cache_clear()
    for name in [name for name, module in sys.modules.items() if str(folder) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def waves(site):
    return installed_into(site)


@pytest.mark.slow
def test_a_package_is_trained_and_evaluated_in_processes_of_their_own(waves, tmp_path):
    listed = {row["name"]: row["purpose"] for row in answer("recipes")["recipes"]}
    assert {*PRESETS} <= {*listed}
    assert listed["waves"] == "the frequency of a noisy wave"
    assert answer("prepare", "waves", "--count", 200, "--out", tmp_path / "waves.npz")["examples"] == 200
    assert "waves of 1.0 to 4.0 Hz" in plimsoll("inspect", tmp_path / "waves.npz").stdout
    words = ["--file", tmp_path / "waves.npz", "--batch-size", 16, "--steps", 4, *PINNED]
    done = plimsoll("train", "waves", *words, "--memory", "1GiB", "--run", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    found = answer("evaluate", tmp_path / "run")
    assert found["step"] == 4
    assert found["loss"] > 0
    assert [*found["error_by_frequency"]] == ["1 to 2 Hz", "2 to 3 Hz", "3 to 4 Hz"]
    assert "mean error in Hz" in plimsoll("evaluate", tmp_path / "run").stdout
    refused = plimsoll("solve", tmp_path / "run", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is a run of waves, which solves no puzzles" in refused.stderr


def printed(capsys, *words):
    """What the command prints, in this process, whose path has the packages."""
    with contextlib.suppress(SystemExit):  # of --help
        assert main([*words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "train"])
def test_its_options_are_in_the_help(waves, capsys, command):
    text = printed(capsys, command, "waves-wide", "--help")
    assert "The .npz file that `plimsoll prepare waves` wrote." in text
    assert "(default: 256)" in text


def test_its_runs_are_opened_by_their_kind(waves):
    saved = json.loads(json.dumps(to_dict(preset("waves-wide"))))
    assert (saved["kind"], saved["parts"], saved["fields"]["width"]) == ("waves", {"recipe": "waves"}, 256)
    assert from_dict(saved) == preset("waves-wide")
    code = saved["code"]
    with (waves / "plimsoll_waves/data.py").open("a") as file:
        file.write("# another code is another answer of the planner\n")
    assert to_dict(preset("waves"))["code"] != code


def test_a_run_of_a_package_that_is_gone_is_refused_by_its_name(site):
    with pytest.raises(RecipeError, match="there is no recipe called 'waves'"):
        from_dict({"kind": "waves", "parts": {"recipe": "waves"}, "fields": {}})


BROKEN = {
    "fails": ("raise OSError('no licence')", "fails:FAMILY", "OSError: no licence"),
    "exits": ("raise SystemExit(3)", "exits:FAMILY", "SystemExit: 3"),
    "is-another": ("FAMILY = 3", "is_another:FAMILY", "AttributeError: 'int' object has no attribute 'names'"),
    "is-nowhere": ("", "is_nowhere_at_all:FAMILY", "ModuleNotFoundError"),
    "takes": (
        "from plimsoll.recipes.family import *\nFAMILY = Family(presets={'code': Preset('', {})})",
        "takes:FAMILY",
        "takes (package takes 1) is left out: code is taken by another family",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_named_and_breaks_no_other(waves, name):
    source, reference, why = BROKEN[name]
    (waves / f"{name.replace('-', '_')}.py").write_text(source)
    describe(waves, name, "1", "plimsoll.recipes", {name: reference})
    (problem,) = installed().broken
    assert problem.startswith(f"{name} (package {name} 1)")
    assert why in problem
    assert preset("waves").options["width"] == 64
    assert preset("code").options["width"] == 128
    with pytest.raises(RecipeError, match=f"there is no recipe called 'of-{name}'.*The recipe package {name}"):
        preset(f"of-{name}")
    with pytest.raises(RecipeError, match=f"there is no model called 'of-{name}'.*The recipe package {name}"):
        part_class("model", f"of-{name}")


def test_recipes_names_a_broken_package_and_lists_the_rest(waves, capsys):
    (waves / "fails.py").write_text(BROKEN["fails"][0])
    describe(waves, "fails", "1", "plimsoll.recipes", {"fails": "fails:FAMILY"})
    text = printed(capsys, "recipes")
    assert "The recipe package fails (package fails 1) cannot be loaded: OSError: no licence." in text
    assert "  waves-wide " in text
    assert [*json.loads(printed(capsys, "recipes", "--json"))] == ["recipes", "broken"]


FAMILY = """
from plimsoll.recipes.family import Family, Preset
FAMILY = Family(parts={{"recipe": {{"odd": "{cls}"}}}}, presets={{"odd": Preset("odd", {{"recipe": "odd"}})}})
"""


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        ("nowhere_at_all:Odd", "nowhere_at_all:Odd, which cannot be loaded: ModuleNotFoundError"),
        ("plimsoll_waves.recipe:Waves", "registered as the recipe 'odd', and has no such `name`"),
    ],
)
def test_a_recipe_that_no_other_process_could_open_is_refused(site, cls, why):
    installed_into(site / "elsewhere")
    (site / "odd_family.py").write_text(FAMILY.format(cls=cls))
    (site / "elsewhere/plimsoll_waves").rename(site / "plimsoll_waves")
    describe(site, "odd", "1", "plimsoll.recipes", {"odd": "odd_family:FAMILY"})
    with pytest.raises(RecipeError, match=why):
        preset("odd")


def test_what_is_built_in_is_registered_as_a_package_is():
    for role, names in BUILT_IN.parts.items():
        for name, reference in names.items():
            assert reference_of(role, name) == reference
            assert part_class(role, name).name == name
    for table in PRESETS.values():
        assert all(reference_of(role, name) for role, name in table.parts.items())
    assert [*presets()][: len(PRESETS)] == [*PRESETS]
