"""What goes with the package: type information, licences, the works it stands on, one version everywhere."""

import re
import tomllib
from pathlib import Path

import pytest

from plimsoll.files.provenance import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_it_is_typed_and_licences_are_there():
    assert (ROOT / "src/plimsoll/py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])


def test_every_python_that_it_says_is_allowed():
    said = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)}
    lowest, beyond = (int(part) for part in re.findall(r"3\.(\d+)", PROJECT["requires-python"]))
    assert said == {f"3.{minor}" for minor in range(lowest, beyond)}


def imported_packages():
    """Top-level packages that the source imports, at the top of a file or inside a function."""
    texts = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    return {name for text in texts for name in re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE)}


def test_dependencies_are_what_is_imported_and_what_the_page_lists():
    requirements = {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]}
    page = (ROOT / "docs/house.md").read_text("utf-8").partition("## Dependencies")[2]
    assert set(re.findall(r"^\| `([\w-]+)`", page, re.MULTILINE)) == requirements

    import_names = {"orbax-checkpoint": "orbax", "protobuf": "google"}
    by_name = {import_names.get(name, name.replace("-", "_")): name for name in requirements}
    not_imported = requirements - {by_name[name] for name in imported_packages() if name in by_name}
    assert not_imported == {"tqdm"}  # by its name, as a notebook has another


def test_every_paper_that_the_code_names_is_in_the_notice():
    notice = (ROOT / "NOTICE").read_text("utf-8")
    named = {
        found
        for path in (ROOT / "src").rglob("*.py")
        for found in re.findall(r"arxiv\.org/abs/(\d{4}\.\d{5})", path.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {paper for paper in named if paper not in notice} == set()


INSTALLERS = r"(?:pip3?|pipx|uv(?: pip| tool)?|conda|mamba|poetry) (?:install|add)|uvx"
INSTALL = re.compile(rf"\b(?:{INSTALLERS})((?: [^\s`&;|]+)+)")
REQUIREMENT = re.compile(r"plimsoll(?![\w./-])")
"""Our import's name where a distribution is expected: in the registry it is somebody else's."""


def pages_and_messages():
    folders = [path for folder in ("src", "docs", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.*")]
    read = [path for path in [*ROOT.iterdir(), *folders] if path.suffix in {".py", ".md", ".cff"}]
    read += [ROOT / "Makefile"]
    return [name for path in read if (name := str(path.relative_to(ROOT))) != "tests/test_package.py"]


def installs_of_a_stranger(text):
    """Commands that would install `plimsoll` from the registry, and extras of a distribution of that name."""
    joined = re.sub(r"[\"']\s*\n\s*[frb]*[\"']", "", text)  # a message over several lines of source
    plain = re.sub(r"[\"'],\s*[\"']", " ", joined)  # a command as a list of words
    plain = re.sub(r"\\\n\s*", "", plain).replace('"', "").replace("'", "")
    found = [match[0] for match in INSTALL.finditer(plain) if any(REQUIREMENT.match(word) for word in match[1].split())]
    return found + re.findall(r"(?<![\w.-])plimsoll\[[a-z][\w,-]*\]", plain)


def test_nobody_is_told_to_install_what_is_not_ours():
    """`plimsoll` in the registry is another package. Ours comes from the checkout, a wheel, or by its own name."""
    told = {name: installs_of_a_stranger((ROOT / name).read_text("utf-8")) for name in pages_and_messages()}
    assert {name: commands for name, commands in told.items() if commands} == {}


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ("`pip install plimsoll`", False),
        ("pip install 'plimsoll[cuda12]'", False),
        ("uv pip install --upgrade plimsoll==0.0.1", False),
        ('run([python, "-m", "pip", "install", "plimsoll"])', False),
        ('f"needs ray: `pip install"\n    " \'plimsoll[ray]\'`"', False),
        ("pip install 'plimsoll-jax[cuda12]'", True),
        ("pip install -e . && plimsoll plan code", True),
        ("pip install plimsoll_jax-0.1.0-py3-none-any.whl", True),
        ("`pip install matplotlib`, then plimsoll draws", True),
        ("import plimsoll; plimsoll.plan('code')", True),
    ],
)
def test_the_rule_knows_the_import_from_the_distribution(text, is_ours):
    assert (installs_of_a_stranger(text) == []) == is_ours


def test_extras_that_pages_name_are_there():
    named = {
        extra
        for name in pages_and_messages()
        for extras in re.findall(rf"{DISTRIBUTION}\\?\[([\w,-]+)\\?\]", (ROOT / name).read_text("utf-8"))
        for extra in extras.split(",")
    }
    assert named
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_distribution_has_one_name_and_pages_its_version():
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["scripts"] == {"plimsoll": "plimsoll.cli.main:main"}
    assert f"version: {PROJECT['version']}" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
