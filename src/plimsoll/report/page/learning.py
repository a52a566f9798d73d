"""The charts of a run: memory under the line, what was learned, how fast, and where it stalled."""

from __future__ import annotations

import math
from statistics import median

from plimsoll.report.layout import format_rate, format_share
from plimsoll.report.page.chart import Chart, Level, Line, figure
from plimsoll.report.page.markup import Markup, element, joined, shortened
from plimsoll.report.page.recorded import Column, Recorded
from plimsoll.units import GIB, MIB, format_bytes, format_seconds

SLOW = 2.0
"""Times the median: a step that took longer is a stall."""
STALLS = 5
"""The longest, which are listed."""
WAITED = 0.05
"""Of a run's time: from there on waiting for data is worth a word of advice."""
CHARTS_OF_METRICS = 4
METRICS_OF_LOOP = {
    *("step", "loss", "validation_loss", "weight", "mfu"),
    *("step_seconds", "data_seconds", "elapsed_seconds", "tokens_per_second", "examples_per_second"),
    *("resident_bytes", "peak_resident_bytes", "device_bytes", "peak_device_bytes"),
}
"""Shown in charts of their own."""


def clock(seconds: float) -> tuple[float, str]:
    """Seconds of the unit in which so long a time is read, and its name."""
    return next(
        ((size, name) for size, name in ((3600.0, "hours"), (60.0, "minutes")) if seconds > 3 * size), (1.0, "seconds")
    )


def memory_under_the_line(run: Recorded) -> Markup | None:
    kind = "device" if run.on_device else "resident"
    now, peak = run.columns.get(f"{kind}_bytes"), run.columns.get(f"peak_{kind}_bytes")
    if now is None:
        return None
    budget, measured = run.budget_bytes, run.measured_peak_bytes
    largest = max([*now.finite(), budget or 0, measured or 0], default=0)
    unit, unit_name = (GIB, "GiB") if largest >= 3 * GIB else (MIB, "MiB")
    size, size_name = clock(run.elapsed_seconds or 0)
    lines = [_in_time("when logged", now, size, unit)]
    if peak is not None:
        lines.append(_in_time("highest so far", _highest(peak), size, unit))
    levels = []
    if budget:
        levels.append(Level(name=f"the line: {format_bytes(budget)}", y=budget / unit, is_line=True))
    what = "memory of one device, as its allocator counts it" if run.on_device else "the process's resident memory"
    over = "" if not budget or measured is None or measured <= budget else " It was crossed."
    return figure(
        Chart(
            title="Memory under the line",
            caption=f"See how far {what} stays below the red line, the budget.{over} The upper curve is the highest"
            " so far, which also holds what happened between two rows of metrics.",
            x_label=f"time since the start, {size_name}",
            y_label=f"{'device' if run.on_device else 'resident'} memory, {unit_name}",
            lines=lines,
            levels=levels,
            x_from_zero=True,
            from_zero=True,
            filled=True,
        )
    )


def _in_time(name: str, column: Column, seconds: float, unit: float) -> Line:
    return Line(name=name, xs=[at / seconds for at in column.seconds], ys=[value / unit for value in column.values])


def _highest(column: Column) -> Column:
    """Over all processes of the run: each counts its own peak from zero."""
    found, highest = Column(column.steps, column.seconds), -math.inf
    for value in column.values:
        highest = max(highest, value)
        found.values.append(highest)
    return found


def learning(run: Recorded) -> Markup:
    charts = [_loss(run), _rate_of_learning(run), *_metrics(run)]
    shown = [chart for chart in charts if chart is not None]
    none = None if "loss" in run.columns else element("p", "No step was logged yet.")
    return joined(none, _nothing_finite(run), element("div", *shown, class_="pair") if shown else None)


def _nothing_finite(run: Recorded) -> Markup | None:
    """A loss of which there is nothing to draw is not passed over."""
    columns = {"training": run.columns.get("loss"), "validation": run.columns.get("validation_loss")}
    lost = {name: column for name, column in columns.items() if column and column.values and not column.finite()}
    counted = " and ".join(
        f"the {name} loss is in all of its {len(column.values):,} rows" for name, column in lost.items()
    )
    if not lost:
        return None
    return element("p", f"Not a finite number: {counted}. There is no curve of it. `--debug-nans` finds the first.")


def by_step(name: str, column: Column, *, marked: bool = False) -> Line:
    return Line(name=name, xs=column.steps, ys=column.values, marked=marked)


def _loss(run: Recorded) -> Markup | None:
    loss, validation = run.columns.get("loss"), run.columns.get("validation_loss")
    lines = [by_step("training loss", loss)] if loss else []
    lines += [by_step("validation loss", validation, marked=True)] if validation else []
    best = run.best()
    seen = f" Validation was best at step {best[0]:,}, with {best[1]:.4f}." if best else ""
    later = " It has risen since." if best and validation and _rose(validation, best[1]) else ""
    falls = "both curves still fall" if len(lines) > 1 else "it still falls"
    return figure(
        Chart(
            title="Loss",
            caption=f"See whether {falls} at the end.{seen}{later}",
            x_label="optimizer step",
            y_label="loss, nats" if run.rate_unit == "tokens" else "loss",
            lines=lines,
            may_be_logarithmic=True,
        )
    )


def _rose(validation: Column, best: float) -> bool:
    last = validation.last
    return last is not None and math.isfinite(last) and last > best + 0.02 * abs(best)


def _rate_of_learning(run: Recorded) -> Markup | None:
    if run.learning_rate is None:
        return None
    steps, rates = run.learning_rate
    return figure(
        Chart(
            title="Learning rate",
            caption=f"The recipe's schedule over the whole run of {run.steps or int(steps[-1]):,} steps; see where the"
            f" warm-up ends. The run is at step {run.last_step or 0:,}.",
            x_label="optimizer step",
            y_label="learning rate, per step",
            lines=[Line(name="learning rate", xs=steps, ys=rates)],
            from_zero=True,
        )
    )


def _metrics(run: Recorded) -> list[Markup]:
    """What the recipe's loss reports besides; the same of training and of validation in one chart."""
    names = [name for name in run.columns if name not in METRICS_OF_LOOP and not name.startswith("validation_")]
    names += [
        short
        for name in run.columns
        if name not in METRICS_OF_LOOP and (short := name.removeprefix("validation_")) != name and short not in names
    ]
    worth = [name for name in names if _is_worth_a_chart(run, name)]
    charts = [_metric(run, name) for name in sorted(worth, key=_interest)[:CHARTS_OF_METRICS]]
    return [chart for chart in charts if chart is not None]


def _is_worth_a_chart(run: Recorded, name: str) -> bool:
    return any(len(run.columns[key].values) > 1 for key in (name, f"validation_{name}") if key in run.columns)


def _interest(name: str) -> tuple[int, str]:
    """Accuracies first, norms last; numbered parts, of which there may be dozens, after all others."""
    numbered = any(character.isdigit() for character in name)
    return (3 if numbered else 0 if "accuracy" in name or "r2" in name else 2 if "norm" in name else 1), name


def _metric(run: Recorded, name: str) -> Markup | None:
    training, validation = run.columns.get(name), run.columns.get(f"validation_{name}")
    lines = [by_step("training", training)] if training else []
    lines += [by_step("validation", validation, marked=True)] if validation else []
    words = shortened(name.replace("_", " "), most=60)
    share = "accuracy" in name
    seen = "1 is perfect." if share else "A spike is a step that was unlike its neighbours."
    return figure(
        Chart(
            title=words[:1].upper() + words[1:],
            caption=f"Its mean over a step{' and over the held-out set' if validation else ''}. {seen}",
            x_label="optimizer step",
            y_label=f"{words}, a share from 0 to 1" if share else f"{words}, as the recipe reports it",
            lines=lines,
            may_be_logarithmic=not share,
            share=share,
        )
    )


def speed(run: Recorded) -> Markup:
    unit = run.rate_unit
    column = run.columns.get(f"{unit}_per_second")
    if column is None:
        return element("p", "No step was timed yet.")
    usual = median(column.finite() or [0.0])
    chart = figure(
        Chart(
            title="Throughput",
            caption=f"Half of the rows of metrics have at least {format_rate(usual, str(unit))}. See the dips: other"
            " work on the machine, or a stall.",
            x_label="optimizer step",
            y_label=f"{unit} per second",
            lines=[by_step(str(unit), column)],
            from_zero=True,
        )
    )
    return element("div", chart, element("div", *_stalls(run), class_="beside"), class_="pair")


def _stalls(run: Recorded) -> list[Markup]:
    steps = run.columns["step_seconds"]
    said = [element("h3", "Stalls")]
    finite = [(int(step), value) for step, value in zip(steps.steps, steps.values, strict=True) if math.isfinite(value)]
    if not finite:
        return [*said, element("p", "No step was timed.")]
    usual = median(value for _, value in finite)
    slow = sorted((pair for pair in finite if pair[1] > SLOW * usual), key=lambda pair: -pair[1])
    said.append(element("p", _pace(len(slow), len(finite), usual)))
    if slow:
        head = element("tr", element("th", "up to step", scope="col"), element("th", "a step took", scope="col"))
        rows = [
            element("tr", element("th", f"{step:,}", scope="row"), element("td", format_seconds(seconds)))
            for step, seconds in slow[:STALLS]
        ]
        said.append(
            element("table", element("caption", "The slowest"), element("thead", head), element("tbody", *rows))
        )
    return [*said, *_waits(run), *_beside_steps(run)]


def _pace(slow: int, rows: int, usual: float) -> str:
    half = f"A step took {format_seconds(usual)} (median over rows of metrics)"
    if not slow:
        return f"{half}, and none of the {rows:,} rows took more than {SLOW:g} times as long: it ran evenly."
    return f"{half}; {slow:,} of {rows:,} rows took more than {SLOW:g} times as long a step."


def _waits(run: Recorded) -> list[Markup]:
    waited, steps = run.columns.get("data_seconds"), run.columns["step_seconds"]
    if waited is None or not sum(steps.finite()):
        return []
    share = sum(waited.finite()) / sum(steps.finite())
    advice = "" if share < WAITED else " A deeper --prefetch, or data that lie nearer, would shorten that."
    return [element("p", f"Training waited for data {format_share(share, 1)} of the time of its steps.{advice}")]


def _beside_steps(run: Recorded) -> list[Markup]:
    """Saves, evaluations and starts. Steps between two rows take the mean that the row says."""
    steps, elapsed, last = run.columns["step_seconds"], run.elapsed_seconds, 0.0
    if not elapsed:
        return []
    stepped = 0.0
    for step, seconds in zip(steps.steps, steps.values, strict=True):
        stepped += seconds * (step - last) if math.isfinite(seconds) else 0.0
        last = step
    beside = max(0.0, elapsed - stepped)
    said = f"Of {format_seconds(elapsed)}, {format_seconds(beside)} ({format_share(beside, elapsed)}) went into"
    return [element("p", f"{said} evaluations and saves that training waited for.")]


def other_metrics(run: Recorded) -> Markup | None:
    """The last values of everything else that was logged."""
    names = [name for name in run.columns if name not in METRICS_OF_LOOP]
    if not names:
        return None
    rows = [
        element(
            "tr", element("th", shortened(name, most=80), scope="row"), element("td", f"{run.columns[name].last:.5g}")
        )
        for name in names[:80]
    ]
    table = element("table", element("tbody", *rows))
    inside = element(
        "div", table, class_="scroll", tabindex="0", role="region", aria_label="Last values of all metrics"
    )
    return joined(element("details", element("summary", "Last values of all metrics"), inside))
