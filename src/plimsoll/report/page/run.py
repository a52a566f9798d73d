"""The HTML page of one training run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from plimsoll.planned import RunLedger
from plimsoll.report.layout import UNKNOWN, Table, format_rate, format_share, format_used, known
from plimsoll.report.page.plans import plan_section
from plimsoll.report.page.recorded import Column, Facts, Recorded, time_axis
from plimsoll.report.page.section import Page, Section
from plimsoll.report.palette import SERIES
from plimsoll.report.picture import Bar, Bars, Chart, Line, byte_axis
from plimsoll.report.tables import ledger_notes, ledger_tables, peak_words
from plimsoll.units import format_bytes, format_count, format_seconds

SLOW = 2
"""Multiple of the median step time above which a logged step time counts as slow."""
CHARTS_OF_METRICS = 6
"""Largest number of charts of recipe-specific metrics."""
METRICS_OF_LOOP = {
    *("step", "loss", "validation_loss", "evaluations_since_best", "weight", "mfu"),
    *("step_seconds", "data_seconds", "elapsed_seconds", "tokens_per_second", "examples_per_second"),
    *("resident_bytes", "peak_resident_bytes", "device_bytes", "peak_device_bytes"),
}
"""Metrics that the training loop logs for every recipe. The page does not list them as recipe-specific."""

NORM_OF = "gradient_norm/"
"""Prefix of the names of gradient norms that `--log-norms layers` logs, like `gradient_norm/blocks/0` for a layer."""
NORM_UNIT = "norm before clipping"
"""Axis label of gradient norms."""


def run_page(run: Recorded) -> Page:
    """Returns the HTML page of a training run."""
    peak, budget = run.measured_peak_bytes, run.budget_bytes
    verdict = peak_words(peak, budget) if budget else "memory not measured yet"
    if run.planned:
        verdict += f" ({format_bytes(run.planned.peak_bytes)} predicted)"
    length = f" of {run.steps:,}" if run.steps else ""
    return Page(
        title=run.name,
        verdict=f"{run.recipe_name}: {run.state}, step {run.last_step:,}{length}. {verdict[0].upper()}{verdict[1:]}.",
        is_alarming=bool(peak and budget and peak > budget),
        facts=figures(run),
        sections=[
            memory(run),
            learning(run),
            examples(run),
            speed(run),
            plan_section(run.planned) if run.planned else Section(title="The plan", sentences=["There is none yet."]),
            Section(title="Again", commands=run.commands, tables=[conditions(run)]),
        ],
    )


def figures(run: Recorded) -> dict[str, str]:
    """Returns the key numbers at the top of a run's page, by name."""
    loss, best = run.column("loss").values, run.best()
    return {
        "peak, measured": format_used(run.measured_peak_bytes, run.budget_bytes),
        "training loss, last": f"{loss[-1]:.4f}" if loss else UNKNOWN,
        "validation loss, best": f"{best[1]:.4f} at step {best[0]:,}" if best else UNKNOWN,
        "throughput, median": known(run.median_rate, lambda rate: format_rate(rate, run.rate_unit)),
        "time": known(run.elapsed_seconds or None, format_seconds),
        "parameters": format_count(run.planned.parameters) if run.planned else UNKNOWN,
    }


def memory(run: Recorded) -> Section:
    """Returns the section about memory: use over time, and predicted and measured bytes of each memory component."""
    over_time = memory_over_time(run)
    if run.ledger is None:
        return Section(title="The line", charts=[over_time])
    parts, phases = ledger_tables(run.ledger)
    return Section(
        title="The line",
        charts=[over_time, parts_of_peak(run.ledger)],
        tables=[parts, Table(title="Notes", rows=ledger_notes(run.ledger))],
        folded=[phases],
    )


def memory_over_time(run: Recorded) -> Chart:
    """Returns a chart of the current and the peak memory over time, with the budget as a limit."""
    kind, budget = run.memory_kind, run.budget_bytes
    unit, unit_name = byte_axis(budget or 0)
    second, clock = time_axis(run.elapsed_seconds)
    columns = {
        "when logged": run.column(f"{kind}_bytes"),
        "highest of the process so far": run.column(f"peak_{kind}_bytes"),
    }
    return Chart(
        title="Memory under the budget",
        unit=f"{kind} memory, {unit_name}",
        x_unit=f"time since the start, {clock}",
        lines=[column.line(name, second=second, unit=unit) for name, column in columns.items()],
        limits={f"budget {format_bytes(budget)}": budget / unit} if budget else {},
        from_zero=True,
    )


def parts_of_peak(ledger: RunLedger) -> Bars:
    """Returns a chart with a bar of measured bytes for each memory component, and a mark at the predicted bytes."""
    unit, unit_name = byte_axis(ledger.predicted_bytes)
    rows = []
    for name, component in ledger.largest_first():
        measured = component.measured
        size = component.predicted if measured is None else measured
        rows.append(
            Bar(
                name=name,
                parts={"bytes": size / unit},
                text="not measured" if measured is None else format_bytes(measured),
                mark=component.predicted / unit,
                is_hollow=measured is None,
            )
        )
    caption = "Bars are what was measured, lines across them what was predicted. A hollow bar was not measured."
    return Bars(title="Parts of the peak", caption=caption, rows=rows, x_unit=unit_name)


def learning(run: Recorded) -> Section:
    """Returns the section about learning: curves of losses, learning rate and other metrics, and their last values."""
    # Report missing or non-finite losses in sentences.
    loss, validation = run.column("loss"), run.column("validation_loss")
    sentences = [] if loss.values else ["No step was logged yet."]
    lost = len(loss.values) - len(loss.finite)
    if lost:
        sentences.append(
            f"The loss is not a finite number in {lost:,} of {len(loss.values):,} rows: see the gaps. `--debug-nans`"
            " finds the first."
        )

    # Draw losses and the learning rate.
    best = run.best()
    lowest = f" Validation was best at step {best[0]:,}, with {best[1]:.4f}." if best else ""
    charts = [
        Chart(
            title="Loss",
            caption=f"See whether it still falls at the end.{lowest}",
            unit=run.loss_unit,
            lines=[loss.line("training loss"), validation.line("validation loss", is_marked=True)],
        )
    ]
    if run.learning_rate is not None:
        steps, rates = run.learning_rate
        schedule = Line(name="learning rate", xs=steps, ys=rates)
        caption = "The recipe's schedule over the whole run."
        charts.append(Chart(title="Learning rate", caption=caption, unit="per step", lines=[schedule], from_zero=True))

    # Draw gradient norms and recipe-specific metrics, and list their last values.
    charts += gradient_norms(run)
    others = [name for name in run.columns if name not in METRICS_OF_LOOP]
    curves = {name.removeprefix("validation_") for name in others if len(run.column(name).values) > 1}
    curves -= {name for name in curves if re.search(r"\d", name) or name.startswith(NORM_OF)}  # there may be dozens
    charts += [metric(run, name) for name in sorted(curves)[:CHARTS_OF_METRICS]]
    last = [(name, f"{run.column(name).values[-1]:.5g}") for name in others]
    values = Table(title="Last values of all metrics", rows=last, align="lr")
    return Section(title="What it learned", sentences=sentences, charts=charts, folded=[values])


def gradient_norms(run: Recorded) -> list[Chart]:
    """Returns charts of gradient norms of layers and of other parts; no charts without logged norms."""
    # Separate norms of layers, like `blocks/0` (group and layer number), from norms of other parts.
    groups: dict[str, dict[int, Column]] = {}
    others: dict[str, Column] = {}
    for name, column in run.columns.items():
        if not (name.startswith(NORM_OF) and column.finite):
            continue
        part = name.removeprefix(NORM_OF)
        group, _, number = part.rpartition("/")
        if number.isdigit():
            groups.setdefault(group, {})[int(number)] = column
        else:
            others[part] = column

    # Draw norms of layers against the layer number, and norms of other parts against optimizer steps.
    charts = [norms_by_layer(group, layers) for group, layers in groups.items()]
    if others:
        largest = sorted(others, key=lambda part: median(others[part].finite), reverse=True)[: len(SERIES)]
        lines = [others[part].line(part) for part in largest]
        caption = f"The largest {len(lines)} of {len(others)}." if len(lines) < len(others) else ""
        charts.append(Chart(title="Gradient norm of other parts", caption=caption, unit=NORM_UNIT, lines=lines))
    return charts


def norms_by_layer(group: str, layers: Mapping[int, Column]) -> Chart:
    """Returns a chart of median gradient norms against the layer number: a curve for each third of the logged steps."""
    numbers = sorted(layers)
    lines = []
    for third, word in enumerate(("first", "second", "last")):
        medians = []
        for number in numbers:
            norms = layers[number].finite
            part = norms[third * len(norms) // 3 : (third + 1) * len(norms) // 3]
            medians.append(median(part) if part else math.nan)
        lines.append(Line(name=f"{word} third of the steps", xs=numbers, ys=medians, is_marked=True))
    caption = "Medians over logged steps. See whether norms grow or shrink from layer to layer."
    return Chart(
        title=f"Gradient norm by layer of {group}" if group else "Gradient norm by layer",
        caption=caption,
        unit=NORM_UNIT,
        x_unit="layer, from the input",
        lines=lines,
    )


def metric(run: Recorded, name: str) -> Chart:
    """Returns a chart of a metric during training and on the held-out set."""
    words = name.replace("_", " ")
    training = run.column(name).line("training")
    validation = run.column(f"validation_{name}").line("validation", is_marked=True)
    is_share = "accuracy" in name
    unit = "share, 1 is perfect" if is_share else "as the recipe reports it"
    return Chart(title=words.capitalize(), unit=unit, lines=[training, validation], from_zero=is_share)


def examples(run: Recorded) -> Section:
    """Returns the section with examples of the model's output: texts, puzzles, curves and tables."""
    charts, tables, samples = [], [], []
    for shown in run.exhibits:
        if shown["kind"] == "curves":
            charts.append(exhibited_curves(shown))
        elif shown["kind"] == "table":
            title = f"{shown['title']}: {shown['caption']}"
            tables.append(Table(title=title, header=shown["header"], rows=shown["rows"]))
        else:
            samples.append(shown)
    sentences = [f"Left out: {text}" for text in run.left_out]
    return Section(title="What it makes", sentences=sentences, charts=charts, samples=samples, tables=tables)


def exhibited_curves(shown: Facts) -> Chart:
    """Returns a chart of curves that the model has produced."""
    return Chart(
        title=shown["title"],
        caption=shown["caption"],
        unit=shown["y_label"],
        x_unit=shown["x_label"],
        lines=[Line(name=name, xs=shown["x"], ys=ys) for name, ys in shown["y"].items()],
        logarithmic_x=bool(shown.get("logarithmic")),
    )


def speed(run: Recorded) -> Section:
    """Returns the section about speed: throughput and step times."""
    sentences = pace(run) if run.column("step_seconds").finite else ["No step was timed yet."]
    rate = f"{run.rate_unit}_per_second"
    chart = Chart(
        title="Throughput",
        caption="Dips are other work on the machine, or a stall.",
        unit=rate.replace("_", " "),
        lines=[run.column(rate).line(run.rate_unit)],
        from_zero=True,
    )
    return Section(title="How fast", sentences=sentences, charts=[chart])


def pace(run: Recorded) -> list[str]:
    """Returns sentences about measured and predicted step times, waiting for data, and time outside of steps."""
    timed = run.column("step_seconds")
    usual = median(timed.finite)
    slow = sum(seconds > SLOW * usual for seconds in timed.finite)
    promised = known(run.planned.step_seconds if run.planned else None, format_seconds)
    waited = format_share(sum(run.column("data_seconds").finite), sum(timed.finite))

    # Sum the time of all steps. Each row has the mean step time since the previous row.
    lengths = [after - before for before, after in pairwise([0, *timed.steps])]
    pairs = zip(lengths, timed.values, strict=True)
    stepping = sum(steps * seconds for steps, seconds in pairs if math.isfinite(seconds))
    rest = max(0.0, run.elapsed_seconds - stepping)
    return [
        f"A step took {format_seconds(usual)}, the median over rows of metrics; the plan promised {promised}."
        f" {slow:,} of {len(timed.values):,} rows took more than {SLOW} times as long.",
        f"Training waited for data {waited} of the time of its steps. Of {format_seconds(run.elapsed_seconds)},"
        f" {format_seconds(rest)} ({format_share(rest, run.elapsed_seconds)}) went into evaluations and saves.",
    ]


def conditions(run: Recorded) -> Table:
    """Returns a table with the run's path, chip, seed, data, options, package versions and machine."""
    session = run.sessions[-1] if run.sessions else {}
    named = {
        "run": run.path,
        "chip": run.planned.plan.chip if run.planned else UNKNOWN,
        "seed": run.recipe.get("fields", {}).get("seed", UNKNOWN),
        "data": run.data,
        **run.chosen,
        **session,
        "sessions": len(run.sessions),
    }
    rows = [(name.replace("_", " "), UNKNOWN if value is None else str(value)) for name, value in named.items()]
    return Table(title="Under these conditions", rows=rows)
