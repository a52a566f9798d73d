"""Page of several runs side by side: their results, their charts, and how their recipes and plans differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plimsoll.planned import Plan
from plimsoll.report.layout import UNKNOWN, format_known_bytes
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.learning import BYTES, TIMES, unit_of
from plimsoll.report.page.markup import Markup, element, joined, scrolling, shortened, table
from plimsoll.report.page.of_run import facts
from plimsoll.report.page.recorded import Recorded
from plimsoll.report.page.shell import page
from plimsoll.report.tables import lever_rows
from plimsoll.units import format_bytes

MOST_FIELDS = 60
"""Differences that are listed."""


def comparison_page(runs: Sequence[Recorded], *, footer: str) -> str:
    """Returns the page of several runs. `footer` is its last line."""
    names = names_of(runs)
    sections = [
        ("What came of it", _table(names, _outcomes(runs), "Outcomes")),
        ("Side by side", element("div", *_charts(runs, names), class_="pair")),
        ("What was asked", _differences(runs, names)),
    ]
    verdict = element("p", _verdict(runs, names), class_="verdict")
    return page(title=" and ".join(names), verdict=verdict, facts=[], sections=sections, footer=footer)


def names_of(runs: Sequence[Recorded]) -> list[str]:
    """Returns a name per run: its folder's, its path if folders are named alike, a number if one run is given twice."""
    for names in ([run.name for run in runs], [run.path for run in runs]):
        if len({*names}) == len(names):
            return [shortened(name, most=80) for name in names]
    return [f"{run.name} ({number})" for number, run in enumerate(runs, start=1)]


def _verdict(runs: Sequence[Recorded], names: Sequence[str]) -> str:
    """Returns which run has the lowest validation loss, and which took the least memory, if they differ."""
    losses = [(f"{best[1]:.4f}", name) for run, name in zip(runs, names, strict=True) if (best := run.best())]
    peaks = [(run.measured_peak_bytes, name) for run, name in zip(runs, names, strict=True)]
    sentences = []
    if len({loss for loss, _ in losses}) > 1:
        loss, name = min(losses, key=lambda pair: float(pair[0]))
        sentences.append(f"the lowest validation loss is that of {name}, {loss}")
    if len({format_bytes(peak) for peak, _ in peaks if peak}) > 1:
        peak, name = min((peak, name) for peak, name in peaks if peak)
        sentences.append(f"the least memory was taken by {name}, {format_bytes(peak)}")
    text = (
        "; ".join(sentences)
        or f"{len(runs)} runs that differ neither in memory nor in validation loss, as far as they were measured"
    )
    return f"{text[0].upper()}{text[1:]}."


def _outcomes(runs: Sequence[Recorded]) -> list[tuple[str, list[str]]]:
    """Returns the figures of all runs: state, losses, rates, and what each component was measured at."""
    rows = [(name, [dict(facts(run))[name] for run in runs]) for name, _ in facts(runs[0])]
    components = [run.ledger.get("components", {}) for run in runs]
    measured = [
        (f"of it {part}, measured", [format_known_bytes(sizes.get(part, {}).get("measured")) for sizes in components])
        for part in dict.fromkeys(name for sizes in components for name in sizes)
    ]
    return [
        ("recipe", [str(run.planned.get("recipe") or run.recipe.get("kind", UNKNOWN)) for run in runs]),
        ("state", [run.state for run in runs]),
        *rows,
        ("peak, predicted", [format_known_bytes(run.planned.get("predicted_peak_bytes")) for run in runs]),
        *measured,
    ]


def _differences(runs: Sequence[Recorded], names: Sequence[str]) -> Markup:
    """Returns a table of options, levers and versions that differ; two runs agree in most of them."""
    fields = [run.recipe.get("fields") or {} for run in runs]
    rows = [(f"--{name.replace('_', '-')}", values) for name, values in _differing(fields)]
    levers = [lever_rows(Plan.from_dict(run.planned["plan"])) if run.planned else {} for run in runs]
    rows += _differing(levers)
    last = [run.sessions[-1] if run.sessions else {} for run in runs]
    rows += [(name, values) for name, values in _differing(last) if name != "started"]
    if not rows:
        return element("p", "Nothing: recipe, plan and versions are the same.")
    return joined(
        element("p", "Only what differs: of the recipe, the plan, the versions and the machine."),
        _table(names, rows[:MOST_FIELDS], "What was asked"),
    )


def _differing(fields: Sequence[Any]) -> list[tuple[str, list[str]]]:
    """Returns the names whose values differ between the mappings, one per run, with all of their values."""
    names = dict.fromkeys(name for of_run in fields for name in of_run)
    rows = [(name, [str(of_run.get(name, UNKNOWN)) for of_run in fields]) for name in names]
    return [(name, values) for name, values in rows if len({*values}) > 1]


def _table(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], title: str) -> Markup:
    cells = [[shortened(name), *(shortened(value, most=120) for value in values)] for name, values in rows]
    return scrolling(table(cells, header=["", *names], words=range(1, len(names) + 1)), name=title)


def _charts(runs: Sequence[Recorded], names: Sequence[str]) -> list[Markup]:
    hours, clock = unit_of(max((run.elapsed_seconds or 0 for run in runs), default=0), TIMES)
    units = {run.rate_unit for run in runs} - {None}
    in_nats = "loss, nats" if units == {"tokens"} else "loss"
    kind = "device" if all(run.on_device for run in runs) else "resident"
    budgets = sorted({run.budget_bytes for run in runs if run.budget_bytes})
    unit, unit_name = unit_of(max([*budgets, *(run.measured_peak_bytes or 0 for run in runs)], default=0), BYTES)
    which = "the budget" if len(budgets) == 1 else "a budget"

    def chart(
        column: str, title: str, caption: str, y_label: str, *, in_time: bool = False, scale: float = 1.0, **more: Any
    ) -> Markup | None:
        """Returns a chart with a column of all runs that have it, by step or by time."""
        lines = [
            Line(
                name=name,
                xs=[at / hours for at in series.seconds] if in_time else series.steps,
                ys=[value / scale for value in series.values],
                marked=column == "validation_loss",
            )
            for run, name in zip(runs, names, strict=True)
            if (series := run.columns.get(column)) is not None
        ]
        x_label = f"time since the start, {clock}" if in_time else "optimizer step"
        labels = {"title": title, "caption": caption, "x_label": x_label, "y_label": y_label}
        return Chart(**labels, lines=lines, x_from_zero=in_time, **more).figure()

    by_step = "By step. See which curve lies lower, and whether it falls further."
    earlier = "The same by the clock: a faster run is further to the left."
    charts = [
        chart("loss", "Training loss", by_step, in_nats, may_be_logarithmic=True),
        chart("validation_loss", "Validation loss", by_step, in_nats, may_be_logarithmic=True),
        chart("loss", "Loss in time", earlier, in_nats, in_time=True, may_be_logarithmic=True),
        chart(
            f"{kind}_bytes",
            f"{kind.title()} memory",
            "Each as it was logged; the red lines are the budgets.",
            f"{kind} memory, {unit_name}",
            in_time=True,
            scale=unit,
            levels=[(f"{which}: {format_bytes(size)}", size / unit) for size in budgets],
            from_zero=True,
        ),
    ]
    if len(units) == 1:
        rate = f"{next(iter(units))}_per_second"
        caption = "See which one is faster, and where it dips."
        charts.append(chart(rate, "Throughput", caption, rate.replace("_", " "), from_zero=True))
    return [drawing for drawing in charts if drawing is not None]
