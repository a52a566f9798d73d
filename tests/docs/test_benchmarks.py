"""`benchmarks/all.py` runs every program that a page quotes, and says in one line each what came of it."""

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path

import pytest

from plimsoll.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "results.md")]
"""Without the page of results: what it quotes is of the commit that it names."""
QUOTED = {name for page in PAGES for name in re.findall(r"benchmarks/(\w+)\.py", page.read_text("utf-8"))}


@pytest.fixture(scope="module")
def programs():
    spec = importlib.util.spec_from_file_location("all_benchmarks", ROOT / "benchmarks/all.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_program_is_run_but_for_the_judge_and_what_starts_others(programs):
    names = {each.name for each in programs.BENCHMARKS}
    assert names >= QUOTED
    files = (ROOT / "benchmarks").rglob("*.py")
    there = {file.stem for file in files if "__main__" in file.read_text("utf-8")}
    assert there == {name for name in names if " " not in name} | {"all", "refactor", "sides"}


def test_each_is_there_and_its_options_are_its_own(programs):
    for each in programs.BENCHMARKS:
        if each.name.startswith("plimsoll "):
            continue  # the next test
        text = (ROOT / f"benchmarks/{each.name}.py").read_text("utf-8")
        helpers = (ROOT / f"benchmarks/{name}.py" for name in re.findall(r"^from (\w+) import", text, re.MULTILINE))
        text += "".join(helper.read_text("utf-8") for helper in helpers if helper.exists())
        for option in re.findall(r"--[a-z-]+", f"{each.whole} {each.quick or ''}"):
            assert f'"{option}"' in text, (each.name, option)


def test_commands_of_plimsoll_are_there(programs):
    """Those that make data, and ladders: their first word and every option, by their own help."""
    commands = {command for each in programs.BENCHMARKS for command in each.first}
    commands |= {
        f"{each.name.removeprefix('plimsoll ')} {each.whole}"
        for each in programs.BENCHMARKS
        if each.name.startswith("plimsoll ")
    }
    assert len(commands) >= 6
    for command in commands:
        verb, what, *words = command.split()
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
            main([verb, what, "--help"])
        for option in (word for word in words if word.startswith("--")):
            assert f"{option} " in shown.getvalue(), (command, option)
