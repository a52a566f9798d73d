"""Text and pictures of control: a file that was prepared, a run that drives. Pure: dictionaries in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.report.layout import columns
from plimsoll.report.picture import save_picture
from plimsoll.report.summary import evaluation_text
from plimsoll.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_IN_A_ROW = 5


def evaluation(answer: Mapping[str, Any]) -> str:
    """Returns what `plimsoll evaluate` prints, with or without --closed-loop."""
    means = evaluation_text({name: value for name, value in answer.items() if name != "closed_loop"})
    return f"{means}\n\n{journeys_table(answer['closed_loop'])}" if "closed_loop" in answer else means


def journeys_table(answer: Mapping[str, Any]) -> str:
    """Returns the answer of `--closed-loop` with a row for each family."""
    header = ("family", "x optimal cost, median", "worst", "lost", "norm at the end", "optimal")
    rows = [
        (
            name,
            cost_ratio(family["cost_ratio"]),
            cost_ratio(family["worst_ratio"]),
            f"{family['lost']} of {family['journeys']}",
            f"{family['final_norm']:.3g}",
            f"{family['final_norm_optimal']:.3g}",
        )
        for name, family in answer["families"].items()
    ]
    grades = "; ".join(
        f"below {most:g} x ({grade}) {answer['at_least'][grade]} of {len(rows)}"
        for grade, most in answer["grades"].items()
    )
    return "\n".join(
        [
            f"driving {len(rows)} systems for {answer['seconds']:g} s, {variants_driven(answer)}: what a journey"
            " costs, as a multiple of what it costs the optimal controller (1 x is as good)",
            *columns([header, *rows], align="lrrrrr"),
            f"  families by their median: {grades}; the median of all {cost_ratio(answer['median_cost_ratio'])}",
        ]
    )


def evaluation_picture(answer: Mapping[str, Any], path: Path | str) -> Path:
    """Draws the norm of the state over time, of one journey of each family, optimal and learned, into `path`."""
    return save_picture(path, _norms_figure(answer["closed_loop"]))


def _norms_figure(driven: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    norms = driven["norms"]
    names = [name for name in norms if name != "time"]
    rows = -(-len(names) // PANELS_IN_A_ROW)
    figure = Figure(figsize=(3 * PANELS_IN_A_ROW, 1.8 * rows), layout="constrained")
    panels = figure.subplots(rows, PANELS_IN_A_ROW, squeeze=False).ravel()
    for panel, name in zip(panels, names, strict=False):
        for which, style in (("optimal", "-"), ("learned", "--")):
            panel.semilogy(norms["time"], [max(value, 1e-6) for value in norms[name][which]], style, label=which, lw=1)
        panel.set_title(f"{name}  {cost_ratio(driven['families'][name]['cost_ratio'])}", fontsize=8)
        panel.tick_params(labelsize=6)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    panels[0].legend(fontsize=7)
    figure.suptitle("norm of the state over seconds; costs beside the optimal controller's", fontsize=10)
    return figure


def variants_driven(answer: Mapping[str, Any]) -> str:
    """Returns in words which variants of the systems were driven."""
    return "held-out variants" if answer["held_out"] else "variants that it was trained on"


def cost_ratio(value: float | None) -> str:
    return "lost" if value is None else f"{value:.2f} x"


def prepared_text(answer: Mapping[str, Any]) -> str:
    """Returns what `plimsoll prepare control` prints."""
    again = answer["variants_drawn_again"]
    if answer["finished_before"]:
        return f"{answer['path']} is finished: {answer['examples']:,} windows, {format_bytes(answer['bytes'])}"
    held_out = f"{answer['variants_held_out']} of {answer['variants']} variants of each system held out"
    lines = [
        f"{answer['path']}: {answer['examples']:,} windows, {format_bytes(answer['bytes'])}, in"
        f" {format_seconds(answer['seconds'])} ({answer['examples_per_second']:,.0f} windows/s)",
        f"  to train on: {answer['train_examples']:,}; {held_out}",
    ]
    if answer["trajectories_drawn_again"]:
        lines.append(f"  trajectories that ran away, and were simulated again: {answer['trajectories_drawn_again']:,}")
    if again:
        words = ", ".join(f"{name} {count}" for name, count in again.items())
        lines.append(f"  variants that were unstable under the nominal gain, and drawn again: {words}")
    return "\n".join(lines)
