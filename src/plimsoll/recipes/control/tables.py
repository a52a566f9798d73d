"""What `plimsoll evaluate RUN --closed-loop` prints and draws. Pure: costs and norms in, text and a picture out."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns

PANELS_IN_A_ROW = 5


def journeys_table(found: Mapping[str, Any]) -> str:
    kind = "held-out variants" if found["held_out"] else "variants that it was trained on"
    header = ("family", "x optimal cost, median", "worst", "lost", "norm at the end", "optimal")
    rows = [
        (
            name,
            _ratio(one["cost_ratio"]),
            _ratio(one["worst_ratio"]),
            f"{one['lost']} of {one['journeys']}",
            f"{one['final_norm']:.3g}",
            f"{one['final_norm_optimal']:.3g}",
        )
        for name, one in found["families"].items()
    ]
    grades = "; ".join(
        f"below {most:g} x ({grade}) {found['at_least'][grade]} of {len(rows)}"
        for grade, most in found["grades"].items()
    )
    return "\n".join(
        [
            f"driving {len(rows)} systems for {found['seconds']:g} s, {kind}: what a journey costs, as a multiple of"
            " what it costs the optimal controller (1 x is as good)",
            *columns([header, *rows], align="lrrrrr"),
            f"  families by their median: {grades}; the median of all {_ratio(found['median_cost_ratio'])}",
        ]
    )


def journeys_picture(found: Mapping[str, Any], path: str) -> None:
    """The norm of the state over time, of one journey of each family: optimal and learned."""
    from matplotlib.figure import Figure

    norms = found["norms"]
    names = [name for name in norms if name != "time"]
    rows = -(-len(names) // PANELS_IN_A_ROW)
    figure = Figure(figsize=(3 * PANELS_IN_A_ROW, 1.8 * rows), layout="constrained")
    panels = figure.subplots(rows, PANELS_IN_A_ROW, squeeze=False).ravel()
    for panel, name in zip(panels, names, strict=False):
        for which, style in (("optimal", "-"), ("learned", "--")):
            panel.semilogy(norms["time"], [max(value, 1e-6) for value in norms[name][which]], style, label=which, lw=1)
        panel.set_title(f"{name}  {_ratio(found['families'][name]['cost_ratio'])}", fontsize=8)
        panel.tick_params(labelsize=6)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    panels[0].legend(fontsize=7)
    figure.suptitle("norm of the state over seconds; costs beside the optimal controller's", fontsize=10)
    figure.savefig(path, dpi=110)


def _ratio(value: float | None) -> str:
    return "lost" if value is None else f"{value:.2f} x"
