import errno
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from plimsoll.api import plan as api_plan
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.planned import Buffer, Ledger, Point
from plimsoll.report.picture import frontier_figure, require_picture, save_picture, waterfall
from plimsoll.report.tables import plan_table
from plimsoll.units import GIB, MIB
from report_examples import PLANNED, SOURCES


@pytest.fixture
def axes():
    (axes,) = waterfall(PLANNED).axes
    return axes


def words(axes):
    return [text.get_text() for text in axes.texts] + [axes.get_title(loc="left")]


def test_each_bar_starts_where_the_last_one_ended_and_the_last_ends_at_the_peak(axes):
    *parts, peak, room = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert parts == [(0, 0.625), (0.625, 1.0), (1.0, 1.25), (1.25, 1.375), (1.375, 1.5)]  # GiB
    assert peak == (0, 1.5)
    assert room == (1.5, 2.0)


def test_the_line_stands_at_the_budget(axes):
    assert list(axes.lines[-1].get_xdata()) == [2.0, 2.0]


def test_golden_words_in_the_picture(axes):
    said = words(axes)
    assert said[:6] == [
        "640.0 MiB  41.7 %",
        "384.0 MiB  25.0 %",
        "256.0 MiB  16.7 %",
        "128.0 MiB  8.3 %",
        "128.0 MiB  8.3 %",
        "1.5 GiB",
    ]
    assert "budget 2.0 GiB, room 512.0 MiB" in said
    assert "stories-small on cpu" in said
    assert said[-1].splitlines() == [
        "micro-batch 16 x 4, remat block, loss chunk 1024, bfloat16",
        "peak in phase train, compiled: 75.0 % of the budget",
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "activations",
        "process",
        "optimizer",
        "parameters",
        "gradients",
        "predicted peak",
    ]


def test_no_words_lie_outside_the_picture_or_on_one_another(tmp_path):
    predicted = {f"component {i}": size * MIB for i, size in enumerate([21_800, 6200, 3100, 3100, 900, 300, 1])}
    figure = waterfall(replace(PLANNED, ledger=Ledger(budget_bytes=40 * GIB, predicted=predicted, phase="train")))
    figure.savefig(tmp_path / "plan.png", dpi=72)
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in [*axes.texts, *axes.get_yticklabels(), axes._left_title]]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_both_formats_are_written(tmp_path):
    assert save_picture(tmp_path / "plan.png", lambda: waterfall(PLANNED)).read_bytes().startswith(b"\x89PNG")
    svg = save_picture(tmp_path / "plan.svg", lambda: waterfall(PLANNED)).read_text()
    assert "<svg" in svg
    assert re.search(r">\s*predicted peak\s*<", svg)  # words stay words: they can be searched


def test_the_same_plan_gives_the_same_svg(tmp_path):
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    one, two = (save_picture(path, lambda: waterfall(PLANNED)).read_bytes() for path in paths)
    assert one == two


def test_another_format_is_refused_with_those_that_exist(tmp_path):
    with pytest.raises(PlimsollError, match=r"\.png or \.svg, and 'plan\.jpg'"):
        save_picture(tmp_path / "plan.jpg", lambda: waterfall(PLANNED))


def test_matplotlib_is_imported_only_to_draw_and_pyplot_never(tmp_path):
    code = (
        "import sys; from plimsoll.report import picture; early = 'matplotlib' in sys.modules;"
        "sys.path.insert(0, 'tests/support'); from report_examples import PLANNED;"
        "picture.save_picture(sys.argv[1], lambda: picture.waterfall(PLANNED));"
        "sys.exit(early or 'matplotlib.pyplot' in sys.modules or 'jax' in sys.modules)"
    ).replace("tests/support", str(Path(__file__).parents[1] / "support"))
    environment = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "plan.png")], env=environment)
    assert done.returncode == 0


def test_without_matplotlib_the_picture_is_refused_with_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlimsollError, match="pip install matplotlib"):
        save_picture(tmp_path / "plan.png", lambda: waterfall(PLANNED))
    assert not (tmp_path / "plan.png").exists()


def test_where_one_cannot_write_nothing_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(PlimsollError, match=r"plan\.png cannot be written, you may not write there: name a file"):
        require_picture(tmp_path / "plan.png")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_in_one_paragraph(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(PlimsollError, match=r"plan\.png was not written: No space left on device$"):
        save_picture(tmp_path / "plan.png", lambda: waterfall(PLANNED))


def test_a_plan_is_printed_even_where_its_picture_fails(tmp_path, monkeypatch, capsys):
    def fails(*_):
        raise PlimsollError("the picture was not written: No space left on device")

    monkeypatch.setattr(api_plan, "plan", lambda *_, **__: PLANNED)
    monkeypatch.setattr("plimsoll.report.picture.save_picture", fails)
    assert main(["plan", "code", "--picture", str(tmp_path / "plan.png")]) == 2
    said = capsys.readouterr()
    assert said.out == plan_table(PLANNED) + "\n"
    assert said.err == "error: the picture was not written: No space left on device\n"


def test_the_largest_temporaries_stand_below_with_their_lines(tmp_path):
    found = (
        Buffer(bytes=8 * MIB, shape="float32[512,4096]", what="exp", place="plimsoll/levers/chunked_loss.py:28"),
        Buffer(bytes=2 * MIB, shape="float32[4096,128]", what="copy", place=""),
    )
    _, below = waterfall(replace(PLANNED, largest_buffers=found)).axes
    assert [label.get_text() for label in below.get_yticklabels()] == [
        "plimsoll/levers/chunked_loss.py:28  exp",
        "copy",
    ]
    assert [bar.get_width() for bar in below.patches] == [8, 2]  # MiB
    assert words(below)[:2] == [" 8.0 MiB  float32[512,4096]", " 2.0 MiB  float32[4096,128]"]


def test_the_frontier_is_drawn_with_the_budget_and_what_was_not_compiled_is_hollow(tmp_path, monkeypatch):
    plans = [(900 * MIB, 0.75, False), (1600 * MIB, 0.5, True), (3 * GIB, 0.4, True)]
    points = [
        Point(plan=PLANNED.plan, needed_bytes=size, step_seconds=seconds, compiled=compiled, chosen=seconds == 0.5)
        for size, seconds, compiled in plans
    ]
    planned = replace(PLANNED, frontier=tuple(points))
    (axes,) = frontier_figure(planned).axes
    line, *dots, budget = axes.lines
    assert list(line.get_xdata()) == [750.0, 500.0, 400.0]  # ms
    assert list(line.get_ydata()) == [900 / 1024, 1600 / 1024, 3.0]  # GiB
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [True, False, False]
    assert list(budget.get_ydata()) == [2.0, 2.0]
    assert [text.get_text() for text in axes.texts] == [
        "chosen: micro-batch 16 x 4, remat block, loss chunk 1024, bfloat16",
        "budget 2.0 GiB",
    ]
    monkeypatch.setattr(api_plan, "search", lambda *_, **__: planned)
    path = tmp_path / "bytes.svg"
    assert main(["plan", "stories", "--chip", "cpu", "--frontier", "--picture", str(path)]) == 0
    assert "bytes against step time" in path.read_text()
