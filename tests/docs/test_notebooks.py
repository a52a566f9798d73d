"""Notebooks in docs/examples: they run in a real kernel, from the first cell to the last, as a user runs them."""

import json
import re
from pathlib import Path

import pytest

from plimsoll.processes.toolchains import python_for

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
ON_A_CARD = "card"
"""Tag of cells that need the card, or the network."""


NOT_RUN = {"install", ON_A_CARD}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_install_first_and_keep_what_they_showed_without_counts(path):
    """`python docs/notebooks.py` keeps it."""
    book = json.loads(path.read_text("utf-8"))
    first, *others = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert "".join(first["source"]).startswith("%pip install ")
    assert NOT_RUN & {*first["metadata"]["tags"]}
    said = [output for cell in others for output in cell["outputs"]]
    assert any("plan for" in "".join(output["data"]["text/plain"]) for output in said if "data" in output)
    for cell in (first, *others):
        assert cell["execution_count"] is None
        assert not (cell["outputs"] and NOT_RUN & {*cell["metadata"].get("tags", ())})
        assert all(output.get("execution_count") is None for output in cell["outputs"])
        assert all(output["output_type"] != "error" for output in cell["outputs"])
    assert not re.search(r"/(tmp|root|home)/", json.dumps(said))


@pytest.mark.slow
def test_the_quickstart_runs_from_the_first_cell_to_the_last(tmp_path):
    from kernels import read_book, run_book, shown

    book = run_book(read_book(EXAMPLES / "quickstart.ipynb", without=NOT_RUN), tmp_path)
    by_source = {cell.source: cell for cell in book.cells if cell.cell_type == "code"}

    def cell(words):
        return next(by_source[source] for source in by_source if words in source)

    assert "plan for functions on cpu" in shown(cell("plimsoll.plan("))
    assert "of 600.0 MiB" in shown(cell("plimsoll.plan("))
    assert "predicted peak" in shown(cell("plimsoll.plan("))
    assert "steps: 300 of 300, finished" in shown(cell("steps=300"))
    assert len(shown(cell("axes = rows"), "image/png")) > 1000
    assert "measured peak" in shown(cell("run.ledger"))
    evaluated = eval(shown(cell("run.evaluate()\n".strip())))  # a dict, as the cell shows it
    accuracy = float(shown(cell("params = run.params()")))
    assert accuracy == pytest.approx(evaluated["accuracy"], abs=0.005)
    assert accuracy > 0.9
    assert float(shown(cell("steps=400")).split()[-1]) <= evaluated["loss"]  # below what planning anew printed


@pytest.mark.by_hand
def test_the_notebook_for_a_t4_is_planned_for_one(tmp_path):
    """Without its compiler the bytes are estimated. What needs the card has run nowhere."""
    from kernels import read_book, run_book, shown

    book = run_book(read_book(EXAMPLES / "finetune_t4.ipynb", without=NOT_RUN), tmp_path)
    plan = shown(next(cell for cell in book.cells if "tune.plan(" in cell.source))
    assert plan.startswith("plan for finetune on t4")
    assert re.search(r"frozen weights +.*\b4\b", plan)
    assert ("(compiled)" if python_for("cuda") else "(estimated)") in plan
    assert len((tmp_path / "chats.jsonl").read_text().splitlines()) == 4000
