"""Page of several runs side by side: their results, their charts, and how their recipes and plans differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plimsoll.planned import Plan
from plimsoll.report.layout import UNKNOWN, format_known_bytes
from plimsoll.report.page.blocks import Block, Columns, Table, Text, page
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.recorded import Column, Recorded
from plimsoll.report.page.runs import facts
from plimsoll.report.page.units import BYTES, TIMES, unit_of
from plimsoll.report.tables import lever_rows
from plimsoll.units import format_bytes

MOST_DIFFERENCES = 60

Runs = Mapping[str, Recorded]
"""Runs by their names."""


def comparison_page(recorded: Sequence[Recorded], *, footer: str) -> str:
    """Returns the page of several runs. `footer` is its last line."""
    runs = dict(zip(names_of(recorded), recorded, strict=True))
    sections = [
        ("What came of it", [_table("Outcomes", runs, _outcomes(runs))]),
        ("Side by side", [Columns([[chart] for chart in _charts(runs)])]),
        ("What was asked", _differences(runs)),
    ]
    verdict = [Text(_verdict(runs), "verdict")]
    return page(title=" and ".join(runs), verdict=verdict, facts=[], sections=sections, footer=footer)


def names_of(runs: Sequence[Recorded]) -> list[str]:
    """Returns a name per run: its folder's, its path if folders are named alike, a number if one run is given twice."""
    for names in ([run.name for run in runs], [run.path for run in runs]):
        if len({*names}) == len(names):
            return names
    return [f"{run.name} ({number})" for number, run in enumerate(runs, start=1)]


def _verdict(runs: Runs) -> str:
    """Returns which run has the lowest validation loss, and which took the least memory, if they differ."""
    losses = {name: best[1] for name, run in runs.items() if (best := run.best())}
    peaks = {name: peak for name, run in runs.items() if (peak := run.measured_peak_bytes)}
    sentences = []
    if len({f"{loss:.4f}" for loss in losses.values()}) > 1:
        name = min(losses, key=losses.__getitem__)
        sentences.append(f"the lowest validation loss is that of {name}, {losses[name]:.4f}")
    if len({format_bytes(peak) for peak in peaks.values()}) > 1:
        name = min(peaks, key=peaks.__getitem__)
        sentences.append(f"the least memory was taken by {name}, {format_bytes(peaks[name])}")
    alike = f"{len(runs)} runs that differ neither in memory nor in validation loss, as far as they were measured"
    text = "; ".join(sentences) or alike
    return f"{text[0].upper()}{text[1:]}."


def _outcomes(runs: Runs) -> dict[str, list[str]]:
    """Returns the figures of all runs: state, losses, rates, and what each component was measured at."""
    figures = [dict(facts(run)) for run in runs.values()]
    parts = [run.ledger.get("components", {}) for run in runs.values()]
    return {
        "recipe": [run.recipe_name for run in runs.values()],
        "state": [run.state for run in runs.values()],
        **{name: [of_run[name] for of_run in figures] for name in figures[0]},
        "peak, predicted": [format_known_bytes(run.planned.get("predicted_peak_bytes")) for run in runs.values()],
        **{
            f"of it {part}, measured": [format_known_bytes(sizes.get(part, {}).get("measured")) for sizes in parts]
            for part in dict.fromkeys(name for sizes in parts for name in sizes)
        },
    }


def _differences(runs: Runs) -> list[Block]:
    """Returns a table of options, levers and versions that differ; two runs agree in most of them."""
    fields = [run.recipe.get("fields") or {} for run in runs.values()]
    options = [{f"--{name.replace('_', '-')}": value for name, value in of_run.items()} for of_run in fields]
    levers = [lever_rows(Plan.from_dict(run.planned["plan"])) if run.planned else {} for run in runs.values()]
    sessions = [{**run.sessions[-1], "started": None} if run.sessions else {} for run in runs.values()]
    rows = {**_differing(options), **_differing(levers), **_differing(sessions)}
    if not rows:
        return [Text("Nothing: recipe, plan and versions are the same.")]
    first = dict(list(rows.items())[:MOST_DIFFERENCES])
    words = "Only what differs: of the recipe, the plan, the versions and the machine."
    return [Text(words), _table("What was asked", runs, first)]


def _differing(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the names whose values differ between the mappings, one per run, with all of their values."""
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    rows = {name: [str(mapping.get(name, UNKNOWN)) for mapping in mappings] for name in names}
    return {name: values for name, values in rows.items() if len({*values}) > 1}


def _table(title: str, runs: Runs, rows: Mapping[str, Sequence[str]]) -> Table:
    cells = [[name, *values] for name, values in rows.items()]
    return Table(title=title, header=["", *runs], rows=cells, words=range(1, len(runs) + 1))


def _charts(runs: Runs) -> list[Chart]:
    size, clock = unit_of(max((run.elapsed_seconds or 0 for run in runs.values()), default=0), TIMES)
    in_time = f"time since the start, {clock}"

    def lines(name: str, *, by_time: bool = False, unit: float = 1.0) -> list[Line]:
        """Returns a column of all runs, by step or by time; of a run without it an empty line, so that colours stay."""
        columns = {run_name: run.columns.get(name, Column()) for run_name, run in runs.items()}
        return [
            Line(
                name=run_name,
                xs=[at / size for at in column.seconds] if by_time else column.steps,
                ys=[value / unit for value in column.values],
                is_marked=name == "validation_loss",
            )
            for run_name, column in columns.items()
        ]

    def loss(title: str, column: str) -> Chart:
        caption = "By step. See which curve lies lower, and whether it falls further."
        return Chart(title=title, caption=caption, y_label=in_nats, lines=lines(column), may_be_logarithmic=True)

    units = {run.rate_unit for run in runs.values()} - {None}
    in_nats = "loss, nats" if units == {"tokens"} else "loss"
    charts = [
        loss("Training loss", "loss"),
        loss("Validation loss", "validation_loss"),
        Chart(
            title="Loss in time",
            caption="The same by the clock: a faster run is further to the left.",
            x_label=in_time,
            y_label=in_nats,
            lines=lines("loss", by_time=True),
            x_from_zero=True,
            may_be_logarithmic=True,
        ),
        _memory(runs, in_time, lines),
    ]
    if len(units) == 1:
        rate = f"{next(iter(units))}_per_second"
        caption = "See which one is faster, and where it dips."
        label = rate.replace("_", " ")
        charts.append(Chart(title="Throughput", caption=caption, y_label=label, lines=lines(rate), from_zero=True))
    return charts


def _memory(runs: Runs, in_time: str, lines: Callable[..., list[Line]]) -> Chart:
    kind = "device" if all(run.on_device for run in runs.values()) else "resident"
    budgets = {format_bytes(run.budget_bytes): run.budget_bytes for run in runs.values() if run.budget_bytes}
    peaks = [run.measured_peak_bytes or 0 for run in runs.values()]
    unit, unit_name = unit_of(max([*budgets.values(), *peaks]), BYTES)
    name = "the budget" if len(budgets) == 1 else "a budget"
    return Chart(
        title=f"{kind.title()} memory",
        caption="Each as it was logged; the red lines are the budgets.",
        x_label=in_time,
        y_label=f"{kind} memory, {unit_name}",
        lines=lines(f"{kind}_bytes", by_time=True, unit=unit),
        limits=[(f"{name}: {words}", budget / unit) for words, budget in budgets.items()],
        from_zero=True,
        x_from_zero=True,
    )
