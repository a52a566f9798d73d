"""`benchmarks/all.py` runs every program that a page quotes, and says in one line each what came of it."""

import contextlib
import importlib.util
import io
import json
import re
import sys
from pathlib import Path

import pytest

from plimsoll.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "results.md")]
"""Without the page of results: what it quotes is of the commit that it names."""
QUOTED = sorted({name for page in PAGES for name in re.findall(r"benchmarks/(\w+)\.py", page.read_text("utf-8"))})


@pytest.fixture(scope="module")
def programs():
    spec = importlib.util.spec_from_file_location("all_benchmarks", ROOT / "benchmarks/all.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", QUOTED)
def test_a_program_that_a_page_quotes_is_run(programs, name):
    assert name in {each.name for each in programs.BENCHMARKS}


def test_every_program_is_run_but_for_the_judge_and_what_starts_others(programs):
    files = (ROOT / "benchmarks").rglob("*.py")
    there = {file.stem for file in files if "__main__" in file.read_text("utf-8")}
    assert there == {each.name for each in programs.BENCHMARKS if " " not in each.name} | {"all", "refactor", "sides"}


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


def test_a_figure_stands_beside_its_goal(programs):
    assert programs.goals_in("3 rows\nratio 0.91 (goal: at least 0.8)\nwritten\n") == [
        "ratio 0.91 (goal: at least 0.8)"
    ]
    assert programs.goals_in("1\n2\n") == ["2"]
    assert programs.goals_in("") == []


def test_stories_become_records_to_fine_tune_on(programs, tmp_path):
    (tmp_path / "text.txt").write_text("One.\n<|endoftext|>\nTwo.\n<|endoftext|>\n")
    programs.write_records(tmp_path / "text.txt", tmp_path / "records.jsonl")
    records = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(record) for record in records] == [{"text": "One."}, {"text": "Two."}]


@pytest.fixture
def day(programs, tmp_path, monkeypatch, capsys):
    """Runs benchmarks as `main` does, of programs that are written here; returns its code and its lines."""

    def of(*benchmarks, **texts):
        (tmp_path / "benchmarks").mkdir(exist_ok=True)
        for name, text in texts.items():
            (tmp_path / f"benchmarks/{name}.py").write_text(text)
        for name, value in {"ROOT": tmp_path, "OUT": tmp_path / "out", "BENCHMARKS": benchmarks}.items():
            monkeypatch.setattr(programs, name, value)
        monkeypatch.setattr(sys, "argv", ["all.py"])
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
        return programs.main(), capsys.readouterr().out.splitlines()

    return of


def test_each_has_one_line_and_a_goal_that_is_missed_is_the_one_that_is_shown(programs, day, tmp_path):
    text = "print('a 1 (goal: 2): met'); print('b 1 (goal: 2): missed'); print('c 3 (goal: 2): met')"
    code, lines = day(programs.Benchmark("one"), programs.Benchmark("two"), one=text, two="print(7)")
    assert code == 1
    assert [line.partition("min, ")[2] for line in lines] == [
        "goals missed: 1: b 1 (goal: 2): missed",
        "done: 7",
    ]
    assert "c 3" in (tmp_path / "out/00-one.txt").read_text()


def test_data_that_cannot_be_made_count_as_failed_and_the_rest_goes_on(programs, day, tmp_path):
    command = f"prepare control --samples 0 --out {tmp_path}/w.h5"
    code, lines = day(
        programs.Benchmark("one", first=(command,)), programs.Benchmark("two"), one="print(1)", two="print(2)"
    )
    assert code == 1
    assert len(lines) == 2
    assert f"`plimsoll {command}` ended with exit code 2" in lines[0]
    assert lines[1].endswith("done: 2")
