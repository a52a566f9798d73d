"""Texts of `plimsoll prepare control` and `plimsoll evaluate`, made from their answers."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns
from plimsoll.report.summary import evaluation_text
from plimsoll.units import format_bytes, format_seconds

NEAR = 1.1
"""Multiple of the optimal cost below which a family counts as near the optimum."""


def evaluation(answer: Mapping[str, Any]) -> str:
    """Returns the text that `plimsoll evaluate` prints, with or without --closed-loop."""
    means = evaluation_text({name: value for name, value in answer.items() if name != "closed_loop"})
    return f"{means}\n\n{journeys_table(answer['closed_loop'])}" if "closed_loop" in answer else means


def journeys_table(answer: Mapping[str, Any]) -> str:
    """Returns the answer of `--closed-loop` as text, with a row for each family."""
    rows = [("family", "x optimal cost, median", "worst", "lost")]
    for name, family in answer["families"].items():
        median = cost_ratio(family["cost_ratio"])
        worst = cost_ratio(family["worst_ratio"])
        rows.append((name, median, worst, f"{family['lost']} of {family['journeys']}"))
    count = len(answer["families"])
    lines = [
        f"driving {count} systems for {answer['seconds']:g} s, {variants_driven(answer)}: the cost of a journey, as a"
        " multiple of the optimal controller's (1 x is as good)",
        *columns(rows, align="lrrr"),
        f"  families by their median: below {NEAR:g} x {answer['near_the_optimum']} of {count}; the median of all"
        f" {cost_ratio(answer['median_cost_ratio'])}",
    ]
    return "\n".join(lines)


def variants_driven(answer: Mapping[str, Any]) -> str:
    """Returns a phrase that says whether the simulated variants were held out."""
    return "held-out variants" if answer["held_out"] else "variants that it was trained on"


def cost_ratio(value: float | None) -> str:
    return "lost" if value is None else f"{value:.2f} x"


def prepared_text(answer: Mapping[str, Any]) -> str:
    """Returns the text that `plimsoll prepare control` prints."""
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
        lines.append(f"  trajectories that diverged, and were simulated again: {answer['trajectories_drawn_again']:,}")
    if again:
        words = ", ".join(f"{name} {count}" for name, count in again.items())
        lines.append(f"  variants that were unstable under the nominal gain, and drawn again: {words}")
    return "\n".join(lines)
