"""README.md is enough to begin with: its Python runs as printed."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
(SNIPPET,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
LEFT_OUT = r"^```.*?^```|^\|[^\n]*|<!--.*?-->|\((?:http|docs|CONT)\S+\)|`[^`\n]+`"
"""Code, tables, comments and addresses."""


def test_it_stays_short():
    """Two minutes at 275 words each. What commands print does not count."""
    prose = re.sub(LEFT_OUT, "", README, flags=re.DOTALL | re.MULTILINE)
    assert 100 < len(prose.split()) < 550


def test_every_page_that_it_names_is_there():
    named = {path.partition("#")[0] for path in re.findall(r"\]\(((?:docs|CONT)[^)]+)\)", README)}
    assert len(named) > 8
    assert {path for path in named if not (Path(__file__).parents[2] / path).is_file()} == set()


@pytest.mark.slow
def test_its_python_runs_as_printed(tmp_path):
    from kernels import book_of, run_book, shown

    (printed,) = re.findall(r"^# (True .*)$", SNIPPET, re.MULTILINE)
    book = run_book(book_of(SNIPPET), tmp_path)
    line = re.sub(r"'[^']*runs/sine'", "'runs/sine'", shown(book.cells[-1]).strip().splitlines()[-1])
    figure = r"\d+\.?\d*"
    assert re.sub(figure, "0", line) == re.sub(figure, "0", printed)
    assert (tmp_path / "runs/sine/ledger.json").is_file()
