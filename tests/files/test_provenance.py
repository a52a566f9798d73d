"""A run remembers with what it was trained."""

import subprocess
from datetime import UTC, datetime

import pytest

import plimsoll
from plimsoll.files.provenance import commit, note_session, sessions
from plimsoll.files.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create()
    return run


def test_each_start_is_noted_with_versions_and_machine(folder):
    note_session(folder, now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    note_session(folder)
    first, second = sessions(folder)
    assert first["started"] == "2026-01-02 03:04:05Z"
    assert first["plimsoll"] == plimsoll.__version__
    assert first["jax"]
    assert first["python"]
    assert first["cores"] >= 1
    assert {*first} == {*second}


def test_the_commit_is_that_of_our_checkout_and_says_what_differs(tmp_path):
    package = tmp_path / "src" / "plimsoll"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1\n")
    assert commit(package) is None

    def git(*words):
        identity = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit(package)
    assert clean is not None
    assert len(clean) == 12
    (package / "a.py").write_text("2\n")
    assert commit(package) == f"{clean}+"


def test_an_installed_package_inside_another_checkout_has_no_commit(tmp_path):
    package = tmp_path / ".venv/lib/site-packages/plimsoll"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    assert commit(package) is None
