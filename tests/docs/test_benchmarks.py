"""`benchmarks/all.py` runs every program that a page quotes, but for those that need what it cannot have."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "log.md")]
QUOTED = sorted({name for page in PAGES for name in re.findall(r"benchmarks/(\w+)\.py", page.read_text("utf-8"))})
BY_HAND = {
    "device": "a card",
    "finetune_gguf": "an environment with llama.cpp",
    "schedulers": "Slurm, Open MPI and Ray, and root",
}


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
    assert name in BY_HAND or name in {each.name for each in programs.BENCHMARKS}


def test_each_is_there_and_its_options_are_its_own(programs):
    for each in programs.BENCHMARKS:
        text = (ROOT / f"benchmarks/{each.name}.py").read_text("utf-8")
        for option in re.findall(r"--[a-z-]+", f"{each.whole} {each.quick or ''}"):
            assert f'"{option}"' in text, (each.name, option)


def test_a_figure_stands_beside_its_goal(programs):
    printed = "3 rows\nratio 0.91 (goal: at least 0.8)\nwritten to x.json\n"
    shown = programs._figures
    assert [*shown(programs.Benchmark("any"), printed)] == ["ratio 0.91 (goal: at least 0.8)"]
    assert [*shown(programs.Benchmark("any", goal="2"), "1\n")] == ["1  (goal: 2)"]
    assert [*shown(programs.Benchmark("any"), "")] == []
