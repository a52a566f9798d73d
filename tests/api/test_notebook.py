"""In a notebook: a plan shows itself, and training is one bar."""

import re
import sys
import types

from plimsoll.api.notebook import Bar, ShownPlan, is_here
from plimsoll.files.run_folder import RunFolder
from plimsoll.report.page.plans import plan_in_notebook
from reading_pages import text_of
from report_examples import PLANNED


def test_a_plan_shows_its_table_and_its_picture():
    html = ShownPlan(**vars(PLANNED))._repr_html_()
    said = text_of(html)
    assert "stories-small on cpu: 1.5 GiB of 2.0 GiB (75.0 %), predicted" in said
    assert "activations 640.0 MiB" in said
    assert "the fastest of 12 plans that fit" in said
    assert "predicted peak: 1.5 GiB." in html


def test_it_is_the_same_plan():
    shown = ShownPlan(**vars(PLANNED))
    assert shown.to_dict() == PLANNED.to_dict()
    assert str(shown).startswith("plan for stories-small on cpu: 1.5 GiB of 2.0 GiB")


def test_its_style_touches_nothing_else_of_the_notebook():
    style = plan_in_notebook(PLANNED).partition("<style>")[2].partition("</style>")[0]
    outside, rules = "", style
    while rules != outside:  # the innermost braces, again and again
        outside, rules = rules, re.sub(r"\{[^{}]*\}", ";", rules)
    assert [selector.strip() for selector in outside.split(";") if selector.strip()] == [".plimsoll", "@media print"]


def test_rows_of_metrics_become_a_bar_and_lines_are_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    folder = RunFolder(tmp_path)
    folder.write("data.json", {"steps": 8})
    bar = Bar(folder, max_steps=4, quiet=False)
    bar.message("plain <words>\n")
    bar.show({"step": 2, "validation_loss": 1.0, "elapsed_seconds": 1.0})
    bar.show({"step": 2, "loss": 1.5, "step_seconds": 0.1, "tokens_per_second": 2000.0, "elapsed_seconds": 1.0})
    bar.show({"step": 4, "loss": 1.25, "step_seconds": 0.1, "tokens_per_second": 2000.0, "elapsed_seconds": 2.0})
    bar.close()
    printed = capsys.readouterr()
    assert printed.out == "plain <words>\n"
    assert "4/4" in printed.err
    assert "2.0 s + 0 ms left  loss 1.2500  2,000 tokens/s" in printed.err


def test_a_notebook_is_known_by_the_kernel_of_its_shell(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_here()
    shell = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not is_here()  # IPython in a terminal
    shell.kernel = object()
    assert is_here()
