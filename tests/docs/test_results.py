"""docs/results.md is what the result files say, and a result is kept without what belongs to one machine."""

import importlib.util
import json
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = sorted((DOCS / "results").glob("*.json"))


@pytest.fixture
def results():
    spec = importlib.util.spec_from_file_location("results", DOCS / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_files_say(results):
    assert results.main(["--check"]) == 0


def test_a_changed_figure_is_found(results, tmp_path, monkeypatch, capsys):
    for path in FILES:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    changed = json.loads((tmp_path / "trm.json").read_text())
    changed["results"]["mlp"]["torch-float32"]["peak_bytes"] *= 2
    (tmp_path / "trm.json").write_text(json.dumps(changed))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert results.main(["--check"]) == 1
    assert "docs/results.md is not what the files say" in capsys.readouterr().err


def test_each_file_has_its_tables_and_each_table_a_file(results, tmp_path, monkeypatch, capsys):
    described = tomllib.loads((DOCS / "results.toml").read_text("utf-8"))
    assert [name for name in described if not any(fnmatch(path.stem, name) for path in FILES)] == []
    (tmp_path / "another.json").write_text(json.dumps({"conditions": {}}))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert results.main(["--check"]) == 2
    assert "another.json has no table" in capsys.readouterr().err


def test_no_column_is_without_figures(results):
    """A path that no file has would leave its column out without a word."""
    described = tomllib.loads((DOCS / "results.toml").read_text("utf-8"))
    shown = (DOCS / "results.md").read_text("utf-8")
    columns = [column for tables in described.values() for table in tables for column in table["columns"]]
    heads = [column.partition(": ")[0] for column in columns]
    assert [head for head in heads if f"| {head} |" not in shown] == []


def test_a_result_is_kept_without_paths_and_curves(results, tmp_path, monkeypatch, capsys):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "one"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(results, "DOCS", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    (tmp_path / "results").mkdir()

    made = tmp_path / "made.json"
    made.write_text(json.dumps({"out": "/somewhere/a.json", "rows": [{"losses": [0.0] * 101, "seconds": [1.5]}]}))
    assert results.main(["--keep", str(made), "--command", "python it.py"]) == 2
    assert "does not say its commit: --commit" in capsys.readouterr().err
    assert results.main(["--keep", str(made), "--command", "python it.py", "--commit", "0123456"]) == 2
    assert "0123456 is no commit of this history" in capsys.readouterr().err
    kept = json.loads(results.keep(made, commit=commit, command="python it.py").read_text())
    assert kept["rows"] == [{"seconds": [1.5]}]
    assert "out" not in kept
    assert kept["conditions"].keys() == {"commit", "command", "date"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_file_names_no_place_of_a_machine(results, path):
    result = json.loads(path.read_text("utf-8"))
    assert results.without_places(result) == result
    assert {"commit", "command", "date"} <= result["conditions"].keys()


def test_a_figure_is_written_by_its_unit(results):
    rows = {"rows": [{"size": 3 * 2**30, "times": [3.0, 1.0, 2.0]}, {"size": None, "times": []}]}
    columns = ["size, GiB: size", "a step, ms: times/median", "no: none"]
    table = results.table(rows, {"rows": "rows/*", "columns": columns})
    assert table.splitlines() == ["| size, GiB | a step, ms |", "| --- | --- |", "| 3.00 | 2,000 |"]
