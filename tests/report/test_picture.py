"""Pictures of plans: their numbers, their words, and their files."""

import errno
import os

import pytest

from page_examples import full_plan
from plimsoll.api.planning import ask
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.report.picture import figure_of, frontier_chart, require_place, save_picture, waterfall
from plimsoll.report.tables import plan_table
from report_examples import PLANNED


def test_golden_words_in_the_picture():
    (axes,) = figure_of(waterfall(PLANNED)).axes
    assert [text.get_text() for text in axes.texts] == [
        "640.0 MiB  41.7 %",
        "384.0 MiB  25.0 %",
        "256.0 MiB  16.7 %",
        "128.0 MiB  8.3 %",
        "128.0 MiB  8.3 %",
        "1.5 GiB",
        "budget 2.0 GiB",
    ]
    assert axes.get_title(loc="left") == "stories-small on cpu: 75.0 % of the budget"
    names = ["activations", "process", "optimizer", "parameters", "gradients", "predicted peak"]
    assert [label.get_text() for label in axes.get_yticklabels()] == names


def test_the_frontier_is_drawn_with_the_chosen_plan_and_the_budget():
    (axes,) = figure_of(frontier_chart(full_plan())).axes
    line, chosen, budget = axes.lines
    assert list(line.get_xdata()) == [0.4, 0.5, 0.75]
    assert list(line.get_ydata()) == [3, 1.5, 900 / 1024]  # GiB
    assert list(chosen.get_ydata()) == [1.5]
    assert list(budget.get_ydata()) == [2, 2]


def test_both_formats_are_written_and_the_same_plan_gives_the_same_svg(tmp_path):
    def written(name):
        return save_picture(tmp_path / name, figure_of(waterfall(PLANNED))).read_bytes()

    assert written("plan.png").startswith(b"\x89PNG")
    svg = written("plan.svg")
    assert b"predicted peak</text>" in svg  # words stay words: they can be searched
    assert svg == written("again.svg")


def test_what_cannot_be_written_is_refused_before_anything_is_drawn(tmp_path, monkeypatch):
    with pytest.raises(PlimsollError, match=r"\.png or \.svg, and 'plan\.jpg'"):
        require_place(tmp_path / "plan.jpg")
    with pytest.raises(PlimsollError, match="cannot be written: name a file in a folder"):
        require_place(tmp_path / "none/plan.png")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(PlimsollError, match=r"plan\.png cannot be written: name a file"):
        require_place(tmp_path / "plan.png")


def test_a_plan_is_printed_even_where_the_disk_is_full(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ask, "ask", lambda *_, **__: PLANNED)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    path = tmp_path / "plan.png"
    assert main(["plan", "code", "--picture", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == plan_table(PLANNED) + "\n"
    assert printed.err == f"error: the picture {path} was not written: No space left on device\n"
