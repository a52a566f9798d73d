"""Page of several runs side by side: their results, their charts, and how their recipes and plans differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.report.layout import UNKNOWN, Table, format_known_bytes
from plimsoll.report.page.recorded import Recorded, time_axis
from plimsoll.report.page.run import facts, memory_over_time
from plimsoll.report.page.section import Page, Section
from plimsoll.report.picture import Chart
from plimsoll.report.tables import flag_of, lever_rows
from plimsoll.units import format_bytes

Runs = Mapping[str, Recorded]
"""Runs by their names."""


def comparison_page(recorded: Sequence[Recorded]) -> Page:
    """Returns the page of several runs."""
    runs = dict(zip(names_of(recorded), recorded, strict=True))
    differences = side_by_side(runs, "What differs", [_asked(run) for run in recorded], only_differences=True)
    return Page(
        title=" and ".join(runs),
        verdict=_verdict(runs),
        sections=[
            Section(
                title="What came of it", tables=[side_by_side(runs, "Outcomes", [_outcome(run) for run in recorded])]
            ),
            Section(title="Side by side", charts=_charts(runs)),
            Section(
                title="What was asked",
                sentences=["Of recipes, plans, versions and machines, what is not listed here is the same."],
                tables=[differences],
            ),
        ],
    )


def names_of(runs: Sequence[Recorded]) -> list[str]:
    """Returns a name per run: its folder's, or its path where folders are named alike."""
    names = [run.name for run in runs]
    if len({*names}) == len(names):
        return names
    return [f"{run.path} ({number})" for number, run in enumerate(runs, start=1)]


def _verdict(runs: Runs) -> str:
    """Returns which run has the lowest validation loss, and which took the least memory."""
    losses = {name: best[1] for name, run in runs.items() if (best := run.best())}
    peaks = {name: peak for name, run in runs.items() if (peak := run.measured_peak_bytes)}
    words = []
    if losses:
        name = min(losses, key=losses.__getitem__)
        words.append(f"The lowest validation loss is {losses[name]:.4f}, of {name}.")
    if peaks:
        name = min(peaks, key=peaks.__getitem__)
        words.append(f"The least memory is {format_bytes(peaks[name])}, of {name}.")
    return " ".join(words) or "Nothing was measured yet."


def _outcome(run: Recorded) -> dict[str, str]:
    """Returns the figures of a run: state, losses, rates, and what each component was measured at."""
    parts = run.ledger.get("components", {})
    measured = {f"{name}, measured": format_known_bytes(sizes["measured"]) for name, sizes in parts.items()}
    predicted = format_known_bytes(run.planned.peak_bytes if run.planned else None)
    return {"recipe": run.recipe_name, "state": run.state, "peak, predicted": predicted, **facts(run), **measured}


def _asked(run: Recorded) -> dict[str, Any]:
    """Returns the options, levers and versions of a run."""
    options = {flag_of(name): value for name, value in run.recipe.get("fields", {}).items()}
    levers = lever_rows(run.planned.plan) if run.planned else {}
    session = run.sessions[-1] if run.sessions else {}
    return {**options, **levers, **session, "started": None}


def side_by_side(
    runs: Runs, title: str, facts: Sequence[Mapping[str, Any]], *, only_differences: bool = False
) -> Table:
    """Returns a table with a column per run, and a row per name in `facts`."""
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    rows = [[name, *(str(of_run.get(name, UNKNOWN)) for of_run in facts)] for name in names]
    if only_differences:
        rows = [row for row in rows if len({*row[1:]}) > 1]
    return Table(title=title, header=["", *runs], rows=rows)


def _charts(runs: Runs) -> list[Chart]:
    first = next(iter(runs.values()))
    rate = f"{first.rate_unit}_per_second"
    second, clock = time_axis(max(run.elapsed_seconds for run in runs.values()))

    def chart(title: str, column: str, unit: str, **options: Any) -> Chart:
        lines = [run.column(column).line(name, is_marked=column == "validation_loss") for name, run in runs.items()]
        return Chart(title=title, unit=unit, lines=lines, **options)

    in_time = Chart(
        title="Loss in time",
        caption="The same by the clock: a faster run is further to the left.",
        unit=first.loss_unit,
        x_unit=f"time since the start, {clock}",
        lines=[run.column("loss").line(name, second=second) for name, run in runs.items()],
    )
    return [
        chart("Training loss", "loss", first.loss_unit),
        chart("Validation loss", "validation_loss", first.loss_unit),
        in_time,
        memory_over_time(runs, {}),
        chart("Throughput", rate, rate.replace("_", " "), from_zero=True),
    ]
