"""Charts of a run: memory against the budget, losses and metrics, speed and stalls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import median

from plimsoll.report.layout import format_rate, format_share
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.markup import Markup, element, joined, scrolling, shortened, table
from plimsoll.report.page.recorded import Column, Recorded
from plimsoll.units import GIB, MIB, format_bytes, format_seconds

SLOW = 2.0
"""Factor over the median from which a step counts as a stall."""
UNEVEN, PARTS, LEAST_OF_PART = 1.5, 10, 4
"""Slowest part of a run over its fastest, from which the page says so; parts of a run; and rows of a part at least, so
that one stall makes no part slow."""
STALLS = 5
"""Number of stalls that are listed, the longest first."""
BYTES = (GIB, "GiB"), (MIB, "MiB")
TIMES = (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")
WAITED = 0.05
"""Share of a run's time spent waiting for data, from which on the page gives advice."""
CHARTS_OF_METRICS = 4
METRICS_OF_LOOP = {
    *("step", "loss", "validation_loss", "evaluations_since_best", "weight", "mfu"),
    *("step_seconds", "data_seconds", "elapsed_seconds", "tokens_per_second", "examples_per_second"),
    *("resident_bytes", "peak_resident_bytes", "device_bytes", "peak_device_bytes"),
}
"""Columns of metrics that the training loop writes, which have charts of their own."""


def unit_of(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Returns the first of the units, each a size with its name, of which there are three or more; else the last."""
    return next((unit for unit in units if largest >= 3 * unit[0]), units[-1])


def memory_under_the_line(run: Recorded) -> Markup | None:
    """Returns the chart of memory in use over time, with the budget; None if no row has it."""
    kind = "device" if run.on_device else "resident"
    now, peak = run.columns.get(f"{kind}_bytes"), run.columns.get(f"peak_{kind}_bytes")
    if now is None:
        return None
    budget, measured = run.budget_bytes, run.measured_peak_bytes
    largest = max([*now.finite(), budget or 0, measured or 0], default=0)
    (unit, unit_name), (size, size_name) = unit_of(largest, BYTES), unit_of(run.elapsed_seconds or 0, TIMES)

    curves: list[tuple[str, Column, Iterable[float]]] = [("when logged", now, now.values)]
    if peak is not None:  # of all processes of the run: each counts its own peak from zero
        curves.append(("highest so far", peak, list(accumulate(peak.values, max, initial=-math.inf))[1:]))
    lines = [
        Line(name=name, xs=[at / size for at in column.seconds], ys=[value / unit for value in values])
        for name, column, values in curves
    ]
    levels = [(f"budget: {format_bytes(budget)}", budget / unit)] if budget else []
    what = "memory of one device, as its allocator counts it" if run.on_device else "the process's resident memory"
    over = "" if not budget or measured is None or measured <= budget else " It was crossed."
    return Chart(
        title="Memory under the budget",
        caption=f"See how far {what} stays below the red line, the budget.{over} The upper curve is the highest"
        " so far, which also holds what happened between two rows of metrics.",
        x_label=f"time since the start, {size_name}",
        y_label=f"{kind} memory, {unit_name}",
        lines=lines,
        levels=levels,
        x_from_zero=True,
        from_zero=True,
        filled=True,
    ).figure()


def learning(run: Recorded) -> Markup:
    """Returns the charts of losses, learning rate and the recipe's metrics. A loss that is never finite is named."""
    charts = [_loss(run), _rate_of_learning(run), *(_metric(run, name) for name in _metrics(run))]
    shown = [chart for chart in charts if chart is not None]
    none = None if "loss" in run.columns else element("p", "No step was logged yet.")
    columns = {"training": run.columns.get("loss"), "validation": run.columns.get("validation_loss")}
    lost = " and ".join(
        f"the {name} loss is in all of its {len(column.values):,} rows"
        for name, column in columns.items()
        if column and not column.finite()
    )
    if lost:
        lost = element("p", f"Not a finite number: {lost}. There is no curve of it. `--debug-nans` finds the first.")
    return joined(none, lost or None, element("div", *shown, class_="pair") if shown else None)


def _by_step(name: str, column: Column | None, *, marked: bool = False) -> list[Line]:
    """Returns a column as a curve over optimizer steps; nothing if the run has no such column."""
    return [Line(name=name, xs=column.steps, ys=column.values, marked=marked)] if column else []


def _loss(run: Recorded) -> Markup | None:
    loss, validation = run.columns.get("loss"), run.columns.get("validation_loss")
    lines = [*_by_step("training loss", loss), *_by_step("validation loss", validation, marked=True)]
    best = run.best()
    seen = f" Validation was best at step {best[0]:,}, with {best[1]:.4f}." if best else ""
    last = validation.values[-1] if validation else None
    rose = best and last is not None and math.isfinite(last) and last > best[1] + 0.02 * abs(best[1])
    later = " It has risen since." if rose else ""
    falls = "both curves still fall" if len(lines) > 1 else "it still falls"
    return Chart(
        title="Loss",
        caption=f"See whether {falls} at the end.{seen}{later}",
        y_label="loss, nats" if run.rate_unit == "tokens" else "loss",
        lines=lines,
        may_be_logarithmic=True,
    ).figure()


def _rate_of_learning(run: Recorded) -> Markup | None:
    if run.learning_rate is None:
        return None
    steps, rates = run.learning_rate
    length = run.data.get("steps") or int(steps[-1])
    return Chart(
        title="Learning rate",
        caption=f"The recipe's schedule over the whole run of {length:,} steps; see where the warm-up ends. The run"
        f" is at step {run.last_step or 0:,}.",
        y_label="learning rate, per step",
        lines=[Line(name="learning rate", xs=steps, ys=rates)],
        from_zero=True,
    ).figure()


def _metrics(run: Recorded) -> list[str]:
    """Returns the most interesting of the other metrics, each once for training and validation."""
    names = {name.removeprefix("validation_") for name in run.columns if name not in METRICS_OF_LOOP}
    columns = {name: [run.columns.get(key) for key in (name, f"validation_{name}")] for name in names}
    curves = [name for name in names if any(column and len(column.values) > 1 for column in columns[name])]

    def rank(name: str) -> tuple[int, str]:
        """Sorts accuracies first, norms later, and numbered parts, of which there may be dozens, last."""
        numbered = any(character.isdigit() for character in name)
        return (3 if numbered else 0 if "accuracy" in name or "r2" in name else 2 if "norm" in name else 1), name

    return sorted(curves, key=rank)[:CHARTS_OF_METRICS]


def _metric(run: Recorded, name: str) -> Markup | None:
    training, validation = run.columns.get(name), run.columns.get(f"validation_{name}")
    lines = [*_by_step("training", training), *_by_step("validation", validation, marked=True)]
    words = shortened(name.replace("_", " "), most=60)
    share = "accuracy" in name
    seen = "1 is perfect." if share else "A spike is a step that was unlike its neighbours."
    return Chart(
        title=words[:1].upper() + words[1:],
        caption=f"Its mean over a step{' and over the held-out set' if validation else ''}. {seen}",
        y_label=f"{words}, a share from 0 to 1" if share else f"{words}, as the recipe reports it",
        lines=lines,
        may_be_logarithmic=not share,
        share=share,
    ).figure()


def speed(run: Recorded) -> Markup:
    """Returns the chart of throughput, and what is known of stalls and waits."""
    unit = run.rate_unit
    column = run.columns.get(f"{unit}_per_second")
    if column is None:
        return element("p", "No step was timed yet.")
    usual = median(column.finite() or [0.0])
    chart = Chart(
        title="Throughput",
        caption=f"Half of the rows of metrics have at least {format_rate(usual, str(unit))}. See the dips: other"
        " work on the machine, or a stall.",
        y_label=f"{unit} per second",
        lines=_by_step(str(unit), column),
        from_zero=True,
    ).figure()
    return element("div", chart, element("div", *_stalls(run), class_="beside"), class_="pair")


def _change_of_pace(timed: Sequence[tuple[int, float]]) -> str:
    """Returns a sentence that says how much slower the slowest part of a run was than the fastest.

    Empty where that is little.

    Args:
        timed: Steps in order, each with the seconds of a step up to it.
    """
    # Parts of equal length: tenths, but fewer and longer ones of a short run.
    size = max(LEAST_OF_PART, -(-len(timed) // PARTS))
    starts = range(0, len(timed) - LEAST_OF_PART + 1, size)
    parts = [timed[start : start + size] for start in starts]
    if not parts:
        return ""

    # The median of each, with its first and its last step.
    paces = [(median(seconds for _, seconds in part), part[0][0], part[-1][0]) for part in parts]
    fast, *_ = min(paces)
    slow, first, last = max(paces)
    if slow < UNEVEN * fast:
        return ""
    return (
        f"Its pace changed: a step took {format_seconds(fast)} in the fastest part of the run and {slow / fast:.1f}"
        f" times as long, {format_seconds(slow)}, in the slowest (steps {first:,} to {last:,})."
    )


def _stalls(run: Recorded) -> list[Markup]:
    """Returns how even the steps were, the slowest ones, and the time that went into anything but steps."""
    steps = run.columns["step_seconds"]
    parts = [element("h3", "Stalls")]
    finite = [(int(step), value) for step, value in zip(steps.steps, steps.values, strict=True) if math.isfinite(value)]
    if not finite:
        return [*parts, element("p", "No step was timed.")]
    usual = median(value for _, value in finite)
    slow = sorted((pair for pair in finite if pair[1] > SLOW * usual), key=lambda pair: -pair[1])
    half = f"A step took {format_seconds(usual)} (median over rows of metrics)"
    changed = _change_of_pace(finite)
    even = f"{half}, and none of the {len(finite):,} rows took more than {SLOW:g} times as long"
    some = f"{half}; {len(slow):,} of {len(finite):,} rows took more than {SLOW:g} times as long a step"
    parts.append(element("p", f"{some if slow else even}{'.' if slow or changed else ': it ran evenly.'}"))
    parts += [element("p", changed)] if changed else []
    if promised := run.planned.get("step_seconds"):
        between = run.planned.get("step_seconds_range")
        estimate = f", as an estimate of {' to '.join(map(format_seconds, between))}" if between else ""
        parts.append(element("p", f"The plan promised {format_seconds(promised)} a step{estimate}."))
    if slow:
        rows = [(f"{step:,}", format_seconds(seconds)) for step, seconds in slow[:STALLS]]
        parts.append(table(rows, header=("up to step", "a step took"), caption="The slowest"))
    waited, stepping = run.columns.get("data_seconds"), sum(steps.finite())
    if waited is not None and stepping:
        share = sum(waited.finite()) / stepping
        advice = "" if share < WAITED else " A deeper --prefetch, or data that lie nearer, would shorten that."
        text = f"Training waited for data {format_share(share, 1)} of the time of its steps.{advice}"
        parts.append(element("p", text))
    if elapsed := run.elapsed_seconds:
        stepped, last = 0.0, 0.0
        for step, seconds in zip(steps.steps, steps.values, strict=True):  # steps between two rows take the row's mean
            stepped += seconds * (step - last) if math.isfinite(seconds) else 0.0
            last = step
        rest = max(0.0, elapsed - stepped)
        share = f"Of {format_seconds(elapsed)}, {format_seconds(rest)} ({format_share(rest, elapsed)})"
        parts.append(element("p", f"{share} went into evaluations and saves that training waited for."))
    return parts


def other_metrics(run: Recorded) -> Markup | None:
    """Returns a folded table of the last values of everything else that was logged."""
    names = [name for name in run.columns if name not in METRICS_OF_LOOP]
    if not names:
        return None
    title = "Last values of all metrics"
    values = table([(shortened(name, most=80), f"{run.columns[name].values[-1]:.5g}") for name in names[:80]])
    return joined(element("details", element("summary", title), scrolling(values, name=title)))
