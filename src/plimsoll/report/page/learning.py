"""Charts of a run: memory against the budget, losses and metrics, speed and stalls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from plimsoll.report.layout import format_rate, format_share
from plimsoll.report.page.blocks import Block, Columns, Folded, Items, Table, Text
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.recorded import Column, Recorded
from plimsoll.report.page.units import BYTES, TIMES, unit_of
from plimsoll.units import format_bytes, format_seconds

SLOW = 2.0
"""Factor over the median from which a step counts as a stall."""
UNEVEN, PARTS, LEAST_OF_PART = 1.5, 10, 4
"""Slowest part of a run over its fastest, from which the page says so; parts of a run; and rows of a part at least, so
that one stall makes no part slow."""
STALLS = 5
"""Number of stalls that are listed, the longest first."""
WAITED = 0.05
"""Share of a run's time spent waiting for data, from which on the page gives advice."""
CHARTS_OF_METRICS = 4
MOST_METRICS = 80
METRICS_OF_LOOP = {
    *("step", "loss", "validation_loss", "evaluations_since_best", "weight", "mfu"),
    *("step_seconds", "data_seconds", "elapsed_seconds", "tokens_per_second", "examples_per_second"),
    *("resident_bytes", "peak_resident_bytes", "device_bytes", "peak_device_bytes"),
}
"""Columns of metrics that the training loop writes, which have charts of their own."""


def memory(run: Recorded) -> Block:
    """Returns the chart of memory in use over time, with the budget."""
    kind = "device" if run.on_device else "resident"
    now, peak = run.columns.get(f"{kind}_bytes"), run.columns.get(f"peak_{kind}_bytes")
    if now is None:
        return Text("No row of metrics says how much memory was used yet.")
    budget, measured = run.budget_bytes, run.measured_peak_bytes
    unit, unit_name = unit_of(max([*now.finite(), budget or 0, measured or 0]), BYTES)
    size, size_name = unit_of(run.elapsed_seconds or 0, TIMES)

    def line(name: str, column: Column, values: Sequence[float]) -> Line:
        return Line(name=name, xs=[at / size for at in column.seconds], ys=[value / unit for value in values])

    lines = [line("when logged", now, now.values)]
    if peak is not None:  # each process of the run counts its own peak from zero
        highest = list(accumulate(peak.values, max, initial=-math.inf))[1:]
        lines.append(line("highest so far", peak, highest))
    counted = "memory of one device, as its allocator counts it" if run.on_device else "the process's resident memory"
    crossed = " It was crossed." if budget and measured and measured > budget else ""
    return Chart(
        title="Memory under the budget",
        caption=f"See how far {counted} stays below the red line, the budget.{crossed} The upper curve is the highest"
        " so far, which also holds what happened between two rows of metrics.",
        x_label=f"time since the start, {size_name}",
        y_label=f"{kind} memory, {unit_name}",
        lines=lines,
        limits=[(f"budget: {format_bytes(budget)}", budget / unit)] if budget else [],
        x_from_zero=True,
        from_zero=True,
        is_filled=True,
    )


def learning(run: Recorded) -> list[Block]:
    """Returns the charts of losses, learning rate and the recipe's metrics. A loss that is never finite is named."""
    blocks: list[Block] = []
    if "loss" not in run.columns:
        blocks.append(Text("No step was logged yet."))
    columns = {"training": run.columns.get("loss"), "validation": run.columns.get("validation_loss")}
    lost = " and ".join(
        f"the {name} loss is in all of its {len(column.values):,} rows"
        for name, column in columns.items()
        if column and not column.finite()
    )
    if lost:
        blocks.append(Text(f"Not a finite number: {lost}. There is no curve of it. `--debug-nans` finds the first."))
    charts = [_loss(run), *_learning_rate(run), *(_metric(run, name) for name in _metrics(run))]
    return [*blocks, Columns([[chart] for chart in charts])]


def _by_step(name: str, column: Column | None, *, is_marked: bool = False) -> list[Line]:
    """Returns a column as a curve over optimizer steps; nothing if the run has no such column."""
    return [Line(name=name, xs=column.steps, ys=column.values, is_marked=is_marked)] if column else []


def _loss(run: Recorded) -> Chart:
    loss, validation = run.columns.get("loss"), run.columns.get("validation_loss")
    lines = [*_by_step("training loss", loss), *_by_step("validation loss", validation, is_marked=True)]
    caption = f"See whether {'both curves still fall' if len(lines) > 1 else 'it still falls'} at the end."
    best = run.best()
    if validation and best:
        step, lowest = best
        caption += f" Validation was best at step {step:,}, with {lowest:.4f}."
        if math.inf > validation.values[-1] > lowest + 0.02 * abs(lowest):
            caption += " It has risen since."
    label = "loss, nats" if run.rate_unit == "tokens" else "loss"
    return Chart(title="Loss", caption=caption, y_label=label, lines=lines, may_be_logarithmic=True)


def _learning_rate(run: Recorded) -> list[Chart]:
    if run.learning_rate is None:
        return []
    steps, rates = run.learning_rate
    length = run.data.get("steps") or int(steps[-1])
    chart = Chart(
        title="Learning rate",
        caption=f"The recipe's schedule over the whole run of {length:,} steps; see where the warm-up ends. The run"
        f" is at step {run.last_step or 0:,}.",
        y_label="learning rate, per step",
        lines=[Line(name="learning rate", xs=steps, ys=rates)],
        from_zero=True,
    )
    return [chart]


def _metrics(run: Recorded) -> list[str]:
    """Returns the most interesting of the other metrics, each once for training and validation."""
    curves = {
        name.removeprefix("validation_")
        for name, column in run.columns.items()
        if name not in METRICS_OF_LOOP and len(column.values) > 1
    }

    def rank(name: str) -> tuple[int, str]:
        """Sorts accuracies first, norms later, and numbered parts, of which there may be dozens, last."""
        if any(character.isdigit() for character in name):
            return 3, name
        if "accuracy" in name or "r2" in name:
            return 0, name
        return (2 if "norm" in name else 1), name

    return sorted(curves, key=rank)[:CHARTS_OF_METRICS]


def _metric(run: Recorded, name: str) -> Chart:
    training, validation = run.columns.get(name), run.columns.get(f"validation_{name}")
    words = name.replace("_", " ")
    is_share = "accuracy" in name
    means = f"Its mean over a step{' and over the held-out set' if validation else ''}."
    advice = "1 is perfect." if is_share else "A spike is a step that was unlike its neighbours."
    return Chart(
        title=words[:1].upper() + words[1:],
        caption=f"{means} {advice}",
        y_label=f"{words}, {'a share from 0 to 1' if is_share else 'as the recipe reports it'}",
        lines=[*_by_step("training", training), *_by_step("validation", validation, is_marked=True)],
        may_be_logarithmic=not is_share,
        is_share=is_share,
    )


def last_values(run: Recorded) -> Folded:
    """Returns a table of the last values of everything that is not the training loop's."""
    title = "Last values of all metrics"
    names = [name for name in run.columns if name not in METRICS_OF_LOOP][:MOST_METRICS]
    rows = [(name, f"{run.columns[name].values[-1]:.5g}") for name in names]
    return Folded(title, [Table(title=title, header=(), rows=rows)])


def speed(run: Recorded) -> Block:
    """Returns the chart of throughput, and what is known of stalls and waits."""
    unit = run.rate_unit
    if unit is None:
        return Text("No step was timed yet.")
    column = run.columns[f"{unit}_per_second"]
    usual = format_rate(median(column.finite() or [0.0]), unit)
    chart = Chart(
        title="Throughput",
        caption=f"Half of the rows of metrics have at least {usual}. See the dips: other work on the machine, or a"
        " stall.",
        y_label=f"{unit} per second",
        lines=_by_step(unit, column),
        from_zero=True,
    )
    return Columns([[chart], stalls(run)])


def stalls(run: Recorded) -> list[Block]:
    """Returns how even the steps were, the slowest ones, and the time that went into anything but steps."""
    column = run.columns["step_seconds"]
    pairs = zip(column.steps, column.values, strict=True)
    timed = [(int(step), seconds) for step, seconds in pairs if math.isfinite(seconds)]
    if not timed:
        return [Items(title="Stalls", items=["No step was timed."])]

    # How even the steps were.
    usual = median(seconds for _, seconds in timed)
    slow = sorted((pair for pair in timed if pair[1] > SLOW * usual), key=lambda pair: -pair[1])
    changed = change_of_pace(timed)
    half = f"A step took {format_seconds(usual)} (median over rows of metrics)"
    even = f"{half}, and none of the {len(timed):,} rows took more than {SLOW:g} times as long"
    some = f"{half}; {len(slow):,} of {len(timed):,} rows took more than {SLOW:g} times as long a step"
    sentences = [f"{some if slow else even}{'.' if slow or changed else ': it ran evenly.'}", changed]
    if promised := run.planned.get("step_seconds"):
        between = run.planned.get("step_seconds_range")
        estimate = f", as an estimate of {' to '.join(map(format_seconds, between))}" if between else ""
        sentences.append(f"The plan promised {format_seconds(promised)} a step{estimate}.")

    # What training waited for.
    waited, stepping = run.columns.get("data_seconds"), sum(seconds for _, seconds in timed)
    if waited is not None and stepping:
        share = sum(waited.finite()) / stepping
        advice = "" if share < WAITED else " A deeper --prefetch, or data that lie nearer, would shorten that."
        sentences.append(f"Training waited for data {format_share(share, 1)} of the time of its steps.{advice}")
    if elapsed := run.elapsed_seconds:
        rest = max(0.0, elapsed - _stepping_seconds(column))
        share = f"Of {format_seconds(elapsed)}, {format_seconds(rest)} ({format_share(rest, elapsed)})"
        sentences.append(f"{share} went into evaluations and saves that training waited for.")

    rows = [(f"{step:,}", format_seconds(seconds)) for step, seconds in slow[:STALLS]]
    table = Table(title="The slowest", header=("up to step", "a step took"), rows=rows, caption="The slowest")
    return [Items(title="Stalls", items=[text for text in sentences if text]), table]


def _stepping_seconds(column: Column) -> float:
    """Returns the seconds of all steps: those between two rows take the row's mean."""
    total = last = 0.0
    for step, seconds in zip(column.steps, column.values, strict=True):
        if math.isfinite(seconds):
            total += seconds * (step - last)
        last = step
    return total


def change_of_pace(timed: Sequence[tuple[int, float]]) -> str:
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
