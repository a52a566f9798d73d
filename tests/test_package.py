"""What goes with the package: type information, licences, the works it stands on, one version everywhere."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_it_is_typed():
    assert (ROOT / "src/plimsoll/py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_licences_are_there():
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])


def test_every_python_that_it_says_is_allowed():
    said = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)}
    lowest, beyond = (int(part) for part in re.findall(r"3\.(\d+)", PROJECT["requires-python"]))
    assert said == {f"3.{minor}" for minor in range(lowest, beyond)}


def test_the_extras_are_those_of_the_design():
    assert {"cuda12", "cuda13", "tpu", "wandb", "ray"} <= set(PROJECT["optional-dependencies"])


def test_every_paper_that_the_code_names_is_in_the_notice():
    notice = (ROOT / "NOTICE").read_text("utf-8")
    named = {
        found
        for path in (ROOT / "src").rglob("*.py")
        for found in re.findall(r"arxiv\.org/abs/(\d{4}\.\d{5})", path.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {paper for paper in named if paper not in notice} == set()


def test_the_citation_and_the_changelog_have_the_version():
    assert f"version: {PROJECT['version']}" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
