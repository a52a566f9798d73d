"""Pages of one run, and of a plan that was never run."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from plimsoll.report.layout import UNKNOWN, format_rate, format_share, known
from plimsoll.report.page import learning
from plimsoll.report.page.exhibits import exhibit_html
from plimsoll.report.page.markup import Markup, element, joined, shortened, table
from plimsoll.report.page.plan_sections import line_picture, the_plan, used_of, where_the_bytes_go
from plimsoll.report.page.recorded import Recorded
from plimsoll.report.page.shell import page
from plimsoll.report.tables import PROCESS_CELLS, overrun_words
from plimsoll.units import MIB, format_bytes, format_count, format_seconds


def run_page(run: Recorded, *, footer: str) -> str:
    """Returns the page of a run. `footer` is its last line."""
    examples = [html for exhibit in run.exhibits if (html := exhibit_html(exhibit)) is not None]
    missing = [element("li", shortened(text)) for text in run.left_out]
    makes = [
        element("div", *examples, class_="pair") if examples else None,
        joined(element("h3", "Left out"), element("ul", *missing)) if missing else None,
    ]
    sections = [
        ("The line", _the_line(run)),
        ("What it learned", joined(learning.learning(run), learning.other_metrics(run))),
        *([("What it makes", joined(*makes))] if examples or missing else []),
        ("How fast", joined(learning.speed(run), _processes(run) if run.processes else None)),
        ("The plan", the_plan(run.planned) if run.planned else element("p", "This run has no plan yet.")),
        ("Again", _again(run)),
    ]
    return page(title=run.name, verdict=_verdict(run), facts=facts(run), sections=sections, footer=footer)


def plan_page(planned: Mapping[str, Any], *, footer: str) -> str:
    """Returns the page of a plan, from what `plimsoll plan --json` printed. `footer` is its last line."""
    peak, budget = planned["predicted_peak_bytes"], planned["budget_bytes"]
    share = f"{format_bytes(peak)} of {format_bytes(budget)}, {format_share(peak, budget)} of the budget"
    seconds, tokens = planned.get("step_seconds"), planned.get("tokens_per_step")
    rate, unit = (tokens, "tokens") if tokens else (planned.get("examples_per_step"), "examples")
    bytes_of = element("div", line_picture(planned), where_the_bytes_go(planned, {}), class_="pair wide")
    return page(
        title=f"{planned.get('recipe') or 'a plan'} on {planned['plan']['chip']}",
        verdict=element("p", f"A plan that was never run: it expects {share}.", class_="verdict"),
        facts=[
            ("peak, predicted", used_of(peak, budget)),
            ("bytes", str(planned.get("source", UNKNOWN))),
            ("a step, predicted", known(seconds, format_seconds)),
            ("throughput, predicted", format_rate(rate / seconds, unit) if seconds and rate else UNKNOWN),
            ("parameters", format_count(planned["parameters"])),
            ("devices", f"{planned.get('devices', 1):,}"),
        ],
        sections=[("The line", bytes_of), ("The plan", the_plan(planned))],
        footer=footer,
    )


def _verdict(run: Recorded) -> Markup:
    """Returns whether the peak stayed within the budget, which is the reader's first question, and the run's state."""
    peak, budget, predicted = run.measured_peak_bytes, run.budget_bytes, run.planned.get("predicted_peak_bytes")
    recipe = run.planned.get("recipe") or run.recipe.get("kind") or UNKNOWN
    steps = run.data.get("steps")
    of = f" of {steps:,}" if steps else ""
    progress = f"step {run.last_step:,}{of}" if run.last_step is not None else "no step logged"
    progress = f"{run.state}{of}" if run.state.startswith("stopped") else f"{run.state}, {progress}"
    state = element("p", f"{recipe}: {progress}.", class_="quiet")
    if peak is None or not budget:
        return joined(state, element("p", "Its memory was not measured yet.", class_="verdict"))
    share = f"{format_bytes(peak)} of {format_bytes(budget)}"
    compared = ""
    if predicted and round(peak / MIB, 1) == round(predicted / MIB, 1):
        compared = " That is what was predicted."
    elif predicted:
        more = f"{format_share(abs(peak - predicted), predicted)} {'more' if peak > predicted else 'less'}"
        compared = f" That is {more} than the {format_bytes(predicted)} that were predicted."
    if peak > budget:
        line = f"Over the budget by {format_bytes(peak - budget)}: it took {share} at its peak.{compared}"
        return joined(state, element("p", line, class_="verdict over"))
    line = f"Under the budget: {share} at its peak, {format_share(peak, budget)} of the budget.{compared}"
    return joined(state, element("p", line, class_="verdict"))


def facts(run: Recorded) -> list[tuple[str, str]]:
    """Returns the figures at the top of a page, which the page of several runs compares."""
    loss, best, unit = run.columns.get("loss"), run.best(), run.rate_unit
    rate = run.columns.get(f"{unit}_per_second")
    usual = median(rate.finite()) if rate and rate.finite() else None
    return [
        ("peak, measured", used_of(run.measured_peak_bytes, run.budget_bytes)),
        ("training loss, last", f"{loss.values[-1]:.4f}" if loss else UNKNOWN),
        ("validation loss, best", f"{best[1]:.4f} at step {best[0]:,}" if best else "no validation yet"),
        ("throughput, median", format_rate(usual, str(unit)) if usual else UNKNOWN),
        ("time", known(run.elapsed_seconds or None, format_seconds)),
        ("parameters", format_count(run.planned["parameters"]) if run.planned else UNKNOWN),
    ]


def _the_line(run: Recorded) -> Markup:
    """Returns the memory chart, the table of components, and the overruns and notes of the ledger."""
    chart = learning.memory_under_the_line(run) or element("p", "No row of metrics says how much memory was used yet.")
    if not run.planned:
        return chart
    notes = [element("li", overrun_words(overrun)) for overrun in run.ledger.get("overruns", ())]
    notes += [element("li", shortened(note)) for note in run.ledger.get("notes", ())]
    missing = None
    if not run.ledger:
        missing = element("p", "What each part took is measured when a session ends (ledger.json), and none has yet.")
    bytes_of = element("div", where_the_bytes_go(run.planned, run.ledger), missing)
    return joined(
        element("div", chart, bytes_of, class_="pair wide"),
        joined(element("h3", "Overruns and notes"), element("ul", *notes)) if notes else None,
    )


def _processes(run: Recorded) -> Markup:
    """Returns the table of the processes of the last session, the slowest first."""
    rows = run.processes["processes"]
    cells = [[cell(row) for _, cell in PROCESS_CELLS.values()] for row in rows]
    slow = run.processes.get("straggler")
    named = None if slow is None else element("p", f"The others wait for process {slow} in every step.")
    return joined(
        element("h3", "Its processes, the slowest first"), table(cells, header=[*PROCESS_CELLS], words=(1,)), named
    )


def _again(run: Recorded) -> Markup:
    """Returns the commands that continue, repeat or use the run, and the conditions it ran under."""
    commands = []
    for title, command in (
        ("Continues it", run.continue_command),
        ("Repeats it, with the same plan", run.repeat_command),
        ("Uses it", "\n".join(run.use_commands) or None),
    ):
        if command:
            commands += [element("h3", title), element("pre", shortened(command, most=4000), class_="wrapped")]
    fields = run.recipe.get("fields") or {}
    rows = [("run", run.path), ("chip", run.planned.get("plan", {}).get("chip", UNKNOWN))]
    rows += [("seed", str(fields.get("seed", UNKNOWN)))]
    rows += [("data", str((run.data.get("facts") or {}).get("description", UNKNOWN)))]
    rows += [(name.replace("_", " "), str(value)) for name, value in run.chosen.items()]
    last = run.sessions[-1] if run.sessions else None
    if last is None:
        rows.append(("versions", "this run does not say: it was begun by a version that did not keep them"))
    else:
        rows += [(name.replace("_", " "), UNKNOWN if value is None else str(value)) for name, value in last.items()]
        rows.append(("sessions", f"{len(run.sessions):,}, the last of them above"))
    listed = [joined(element("dt", shortened(name)), element("dd", shortened(value))) for name, value in rows]
    conditions = element("div", element("h3", "Under these conditions"), element("dl", *listed, class_="levers"))
    return element("div", element("div", *commands), conditions, class_="pair wide")
