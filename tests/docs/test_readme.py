"""README.md is enough to begin with: its Python runs as printed."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
(SNIPPET,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
LEFT_OUT = r"^```.*?^```|^\|[^\n]*|<!--.*?-->|\((?:http|docs|CONT)\S+\)|`[^`\n]+`"
"""Code, tables, comments and addresses."""

YOURS = """
import jax, jax.numpy as jnp, numpy as np
x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
data, held_out, batch = ({"x": part, "y": np.sin(part).sum(1)} for part in (x[:1920], x[1920:], x[:64]))
def init(key):
    return {"in": jax.random.normal(key, (8, 64)) / 3, "out": jnp.zeros(64)}
def loss(params, batch):
    return jnp.mean((jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]) ** 2)
""".strip()
"""What the snippet of README.md leaves to the reader."""


def test_it_stays_short():
    """Two minutes at 275 words each, up to the list of pages."""
    prose = re.sub(LEFT_OUT, "", README[: README.index("## Where to read on")], flags=re.DOTALL | re.MULTILINE)
    assert 100 < len(prose.split()) < 550
    assert len(README.splitlines()) < 110


def test_every_page_that_it_names_is_there():
    named = {path.partition("#")[0] for path in re.findall(r"\]\(((?:docs|CONT)[^)]+)\)", README)}
    assert len(named) > 20
    assert {path for path in named if not (Path(__file__).parents[2] / path).is_file()} == set()


@pytest.mark.slow
def test_its_python_runs_as_printed(tmp_path):
    from kernels import book_of, run_book, shown

    book = run_book(book_of(YOURS, SNIPPET), tmp_path)
    assert "'loss': " in (result := shown(book.cells[-1]))
    assert "Axes" in result
    assert (tmp_path / "runs/mine/ledger.json").is_file()
