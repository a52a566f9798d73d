"""The loss by position: whether a model still gains from what lies thousands of tokens before. Text and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.recipes.longcontext.positions import BY_POSITION
from plimsoll.report.layout import UNKNOWN, columns
from plimsoll.report.picture import BAR, INK, save_picture
from plimsoll.report.summary import evaluation_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = 40
"""Characters of the longest."""


def evaluation(answer: Mapping[str, Any]) -> str:
    """Returns what `plimsoll evaluate` prints."""
    means = {name: value for name, value in answer.items() if name != BY_POSITION}
    return f"{evaluation_text(means)}\n\n{positions_table(answer[BY_POSITION])}"


def positions_table(losses: Mapping[str, float]) -> str:
    """Returns a table of the loss by position.

    Args:
        losses: Nats by stretch of positions in their order, like "64 to 127".
    """
    highest, before = max(losses.values(), default=0.0), None
    rows = []
    for stretch, loss in losses.items():
        change = UNKNOWN if before is None else f"{loss - before:+.4f}"
        bar = "#" * round(BARS * loss / highest) if highest > 0 else ""
        rows.append((stretch, f"{loss:.4f}", change, bar))
        before = loss
    header = ("positions", "nats", "change", "")
    return "\n".join(["  loss by position in the window", *columns([header, *rows], align="rrrl", indent=4)])


def evaluation_picture(answer: Mapping[str, Any], path: Path | str) -> Path:
    """Draws the loss by position into `path`, a .png or .svg: a step for each stretch, over a logarithmic axis."""
    return save_picture(path, _positions_figure(answer[BY_POSITION]))


def _positions_figure(losses: Mapping[str, float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    bounds = [tuple(int(word) for word in stretch.split(" to ")) for stretch in losses]
    edges = [first + 1 for first, _ in bounds] + [bounds[-1][1] + 2]
    axes.stairs(list(losses.values()), edges, baseline=None, color=BAR, linewidth=2)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("position in the window, counted from 1", color=INK)
    axes.set_ylabel("loss, nats per token", color=INK)
    axes.set_title("Does a token gain from what lies far before it?", loc="left", fontsize=11, color=INK)
    axes.grid(alpha=0.3)
    return figure
