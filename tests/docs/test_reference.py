"""The pages of options, levers and the Python API are what the code says, with every option of every preset."""

import importlib.util
import sys
from pathlib import Path

import pytest

from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.flat import rows
from plimsoll.recipes.registered import PRESETS
from plimsoll.recipes.registry import preset

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their types up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["api.md", "options.md", "all-levers.md"])
def test_a_page_is_what_the_code_says(reference, name):
    """A change of an option or a default that is meant: python docs/reference.py."""
    assert (DOCS / name).read_text("utf-8").splitlines() == reference.PAGES[name]().splitlines()


@pytest.mark.parametrize("name", PRESETS)
def test_every_option_of_a_preset_is_in_the_page_with_its_default(reference, name):
    lines = (DOCS / "options.md").read_text("utf-8").splitlines()
    for option in rows(preset(name)):
        default = reference.shown(option.default)
        assert [line for line in lines if f"`{option.flag}" in line and default in line.split(" | ")[-2]], option.name


def test_every_lever_is_in_the_page():
    page = (DOCS / "all-levers.md").read_text("utf-8")
    assert [lever.name for lever in LEVERS.values() if f"| `{lever.flag}` | " not in page] == []
