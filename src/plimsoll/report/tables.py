"""Tables of a plan, of a ledger (predicted and measured memory), and of runs, for terminals, logs and HTML pages.

Tables have no colours and no line-drawing characters. A component's percentage is of the peak, and the peak's
percentage is of the budget.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.registry import LEVERS, in_words
from plimsoll.planned import Largest, Plan, Planned, RunLedger
from plimsoll.report.layout import (
    UNKNOWN,
    Cells,
    Table,
    all_labelled,
    format_difference_share,
    format_known_bytes,
    format_mib_difference,
    format_rate,
    format_share,
    known,
    labelled,
    table,
)
from plimsoll.units import GIB, format_bytes, format_count, format_seconds

STEP_SOURCES = {"measured": "measured", "kernels": "estimated", "roofline": "by the chip's rates"}
"""Map from `Planned.step_seconds_source` to a description of that source of the step time."""
SLOW_STEP = 600.0
"""Seconds of a step above which the plan's table has a warning."""
SLOW_ADVICE = "take fewer or shorter examples, or more devices"
UNUSED = 1 / 3
"""Unused fraction of the memory budget from which the plan's table recommends `--largest`."""


def plan_table(planned: Planned) -> str:
    """Returns the output of `plimsoll plan`: memory-saving options, bytes, time, reason for the choice, other plans."""
    peak, budget = planned.ledger.predicted_peak_bytes, planned.ledger.budget_bytes
    where = "" if planned.devices == 1 else f" x {planned.devices}, bytes of each device"
    lines = [
        f"plan for {planned.recipe} on {planned.plan.chip}{where}: "
        f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak, budget)} of the budget)",
        "",
        *all_labelled([*largest_rows(planned.largest_found), *chosen_rows(planned)]),
        "",
    ]
    for part in [*tried_tables(planned), *memory_tables(planned)]:
        if part.rows:
            lines += [part.title, *part.lines(), ""]
    lines += all_labelled([*expected_rows(planned), *reason_rows(planned)])
    for plan, peak, seconds, reason in runner_ups(planned).rows:
        lines += [*labelled("runner-up", f"{plan}: {peak}, step {seconds}"), *labelled("", reason)]
    lines += all_labelled(unused_rows(planned))
    return "\n".join(lines)


def largest_rows(largest: Largest | None) -> list[tuple[str, str]]:
    """Returns a row with the largest value of an option that `--largest` found to fit; no row without `--largest`."""
    return [] if largest is None else [(f"largest {largest.option}", largest.reason)]


def tried_tables(planned: Planned) -> list[Table]:
    """Returns a table of the option values that `--largest` tried, with bytes and speed; none without `--largest`."""
    largest = planned.largest_found
    if largest is None:
        return []

    # Keep the second plan of a value that was planned twice: only that one chose its memory-saving options freely.
    tried = {each.value: each for each in largest.tried}
    unit = "tokens" if planned.tokens_per_step else "examples"
    cells: Cells = {
        largest.option: ("r", lambda each: f"{each.value:,}"),
        "bytes": ("r", lambda each: known(each.needed_bytes, lambda size: f"{size / GIB:,.3f} GiB")),
        "a step": ("r", lambda each: known(each.step_seconds, format_seconds)),
        "speed": ("r", lambda each: known(each.per_second, lambda rate: format_rate(rate, unit))),
        "": ("l", lambda each: "fits" if each.fits else "refused" if each.needed_bytes is None else "too large"),
    }
    rows = [tried[value] for value in sorted(tried)]
    return [table(rows, cells, title="values that were tried, each in its smallest plan")]


def chosen_rows(planned: Planned) -> list[tuple[str, str]]:
    """Returns rows (name, text): number of parameters, memory-saving options, devices, and options set by the user."""
    plan = planned.plan
    copies = f", {plan.fsdp} share a copy of the state" if plan.fsdp > 1 else ""
    return [
        ("parameters", format_count(planned.parameters)),
        *lever_rows(plan).items(),
        ("devices", f"{planned.devices}{copies}"),
        ("set by you", ", ".join(map(flag_of, plan.pinned)) or "nothing: the planner chose all of these"),
    ]


def expected_rows(planned: Planned) -> list[tuple[str, str]]:
    """Returns rows (name, text) about the prediction: how it was made, safety margin, disk space, and step time."""
    rows: list[tuple[str, str]] = []
    if band := planned.estimate_band:
        between = f"a peak from {format_bytes(band.lowest_peak_bytes)} to {format_bytes(band.highest_peak_bytes)}"
        rows.append(("estimated", f"without a compiler: {between}, by {band.plans} plans that were also compiled"))
    if planned.trial is not None:
        rows.append(("process", "measured in a trial process of this plan"))
    elif planned.imported_bytes:
        imports = format_bytes(planned.imported_bytes)
        rows.append(("process", f"imports of {imports}, and {planned.instructions:,} compiled instructions"))
    if planned.without_cudnn:
        rows.append(("not cuDNN's attention", planned.without_cudnn))
    if planned.margin_bytes:
        rows.append(("margin", f"{format_bytes(planned.margin_bytes)}: this run exceeded its budget before"))
    if disk := planned.disk:
        size = format_bytes(disk.checkpoint_bytes)
        rows.append(("disk", f"{format_bytes(disk.bytes)} for {disk.kept_at_once} checkpoints of {size} at once"))
    if planned.sent_bytes:
        rows.append(("sent, as compiled", f"{format_bytes(planned.sent_bytes)} by each device in a step"))
    rows.append(("step", _step_words(planned)))
    if planned.step_seconds is not None and planned.step_seconds > SLOW_STEP:
        rows.append(("warning", f"a step takes more than {format_seconds(SLOW_STEP)}: {SLOW_ADVICE}"))
    return rows


def _step_words(planned: Planned) -> str:
    if planned.step_seconds is None:
        return "time unknown: no rates for this chip (`plimsoll plan --measure` times it)"
    source = STEP_SOURCES[planned.step_seconds_source]
    if planned.step_seconds_range:
        source += f", {' to '.join(map(format_seconds, planned.step_seconds_range))}"
    return f"{format_seconds(planned.step_seconds)} ({source}): {rate_words(planned)}"


def units_per_second(planned: Planned) -> float | None:
    """Returns tokens per second at the predicted step time, or examples per second if the recipe has no tokens."""
    if not planned.step_seconds:
        return None
    return (planned.tokens_per_step or planned.examples_per_step) / planned.step_seconds


def rate_words(planned: Planned) -> str:
    """Formats the predicted rate of a plan, like `32,768 tokens/s`."""
    unit = "tokens" if planned.tokens_per_step else "examples"
    return known(units_per_second(planned), lambda rate: format_rate(rate, unit))


def unused_rows(planned: Planned) -> list[tuple[str, str]]:
    """Returns a row that recommends `--largest`, if the plan leaves a third of the budget or more unused."""
    ledger = planned.ledger
    unused = ledger.budget_bytes - ledger.needed_bytes
    if unused < UNUSED * ledger.budget_bytes or not planned.could_grow or planned.largest_found is not None:
        return []
    share = format_share(unused, ledger.budget_bytes)
    options = " or ".join(f"`--largest {option}`" for option in planned.could_grow)
    return [("unused", f"{format_bytes(unused)}, {share} of the budget: {options} finds the largest that fits")]


def reason_rows(planned: Planned) -> list[tuple[str, str]]:
    """Returns rows (name, text) with the reason for the chosen plan, and with plans that failed to compile or run."""
    return [("why", planned.reason), *(("does not compile", text) for text in planned.left_out)]


def runner_ups(planned: Planned) -> Table:
    """Returns a table of other plans that fit, each with the reason that it was not chosen."""
    cells: Cells = {
        "plan": ("l", lambda other: plan_words(other.plan)),
        "peak": ("r", lambda other: format_bytes(other.predicted_peak_bytes)),
        "a step": ("r", lambda other: known(other.step_seconds, format_seconds)),
        "why not": ("l", lambda other: other.reason),
    }
    return table(planned.alternatives, cells, title="The next best plans")


def flag_of(lever: str) -> str:
    """Returns the command-line option of a memory-saving option, like `--loss-chunk` for `loss_chunk`."""
    return f"--{lever.replace('_', '-')}"


def lever_rows(plan: Plan) -> dict[str, str]:
    """Maps the plan's memory-saving options to their values, in words. Leaves out rarely used options that are off."""
    rows = (LEVERS[name].table_row(value, plan) for name, value in plan.levers.items())
    return dict(row for row in rows if row is not None)


def plan_words(plan: Plan) -> str:
    """Describes a plan in one line, like `micro-batch 8 x 8, remat dots, loss chunk 1024, bfloat16`."""
    off = {name: lever.plain for name, lever in LEVERS.items() if name not in ("remat", "precision")}
    pulled = {name: value for name, value in plan.levers.items() if name not in off or value != off[name]}
    return f"micro-batch {plan.micro_batch} x {plan.accumulation}, {in_words(pulled)}"


def memory_tables(planned: Planned) -> list[Table]:
    """Returns tables of predicted bytes: components of the peak, each phase's peak, and a chip's host memory."""
    ledger, host = planned.ledger, planned.ledger.host
    title = f"bytes at the predicted peak, in the phase `{ledger.phase}` ({ledger.source})"
    if ledger.spare_bytes:
        title += f"; {format_bytes(ledger.spare_bytes)} more are kept free"
    tables = [_components(title, ledger.components)]
    if ledger.phases:
        rows = [
            (name, format_bytes(size), "<- peak" if name == ledger.phase else "")
            for name, size in ledger.phases.items()
        ]
        tables.append(Table(title="predicted peak of each phase", rows=rows, align="lrl"))
    if host is not None:
        limit = "no limit given" if host.budget_bytes is None else f"of {format_bytes(host.budget_bytes)}"
        title = f"each host ({limit}) at its peak, in the phase `{host.phase}`, not counting the driver"
        tables.append(_components(title, host.components))
    return tables


def _components(title: str, predicted: Mapping[str, int]) -> Table:
    peak = sum(predicted.values())
    largest_first = sorted(predicted.items(), key=lambda item: -item[1])
    rows = [(name, format_bytes(size), format_share(size, peak)) for name, size in [*largest_first, ("peak", peak)]]
    return Table(title=title, rows=rows, align="lrr")


def buffers_table(planned: Planned) -> Table:
    """Returns the table of `plimsoll plan --buffers`: the step's largest temporary arrays and their source lines."""
    cells: Cells = {
        "bytes": ("r", lambda buffer: format_bytes(buffer.bytes)),
        "shape": ("l", lambda buffer: buffer.shape),
        "operation": ("l", lambda buffer: buffer.what),
        "place": ("l", lambda buffer: buffer.place or UNKNOWN),
    }
    title = "largest temporary arrays at the peak of a step, and the lines of code that make them"
    if not planned.largest_buffers:
        title = "largest temporary arrays of the step: unknown without a compiler (`plimsoll chips --install`)"
    return table(planned.largest_buffers, cells, title=title)


def frontier_table(planned: Planned) -> Table:
    """Returns the table of `plimsoll plan --frontier`: bytes and step time of the plans on the Pareto frontier."""
    cells: Cells = {
        "budget": ("r", lambda point: format_bytes(point.needed_bytes)),
        "step": ("r", lambda point: format_seconds(point.step_seconds)),
        "plan": ("l", lambda point: plan_words(point.plan)),
        "bytes": ("l", lambda point: "compiled" if point.compiled else "estimated"),
        "": ("l", lambda point: "chosen" if point.chosen else ""),
    }
    title = "budget and step time of each plan that no other plan beats in both"
    return table(planned.frontier, cells, title=title)


def ledger_table(ledger: RunLedger) -> str:
    """Formats the ledger of a run: bytes predicted and measured, and their difference.

    The first line reports if the measured peak stayed within the budget.
    """
    verdict = peak_words(ledger.measured_bytes, ledger.budget_bytes)
    expected = format_bytes(ledger.predicted_bytes)
    lines = [f"{verdict} (predicted {expected}, {ledger.source}, phase `{ledger.phase}`)"]
    for part in ledger_tables(ledger):
        if part.rows:
            lines += ["", *part.lines()]
    notes = ledger_notes(ledger)
    if notes:
        lines += ["", *all_labelled(notes)]
    return "\n".join(lines)


def peak_words(peak: float | None, budget: int) -> str:
    """Returns a sentence that compares a measured peak with the budget."""
    if peak is None:
        return f"peak not measured yet; budget {format_bytes(budget)}"
    used = f"measured peak {format_bytes(peak)} of {format_bytes(budget)}, {format_share(peak, budget)} of the budget"
    return f"OVER THE BUDGET by {format_bytes(peak - budget)}: {used}" if peak > budget else used


def ledger_tables(ledger: RunLedger) -> list[Table]:
    """Returns two tables of predicted and measured bytes: by component of memory and by phase of training."""
    # Rows of name, predicted bytes and measured bytes.
    parts = [(name, component.predicted, component.measured) for name, component in ledger.largest_first()]
    parts.append(("peak", ledger.predicted_bytes, ledger.measured_bytes))
    before = ledger.predicted.phases
    after = ledger.measured.phases if ledger.measured else {}
    phases = [(f"phase {name}", before.get(name), after.get(name)) for name in {**before, **after}]

    cells: Cells = {
        "": ("l", lambda row: row[0]),
        "predicted": ("r", lambda row: format_known_bytes(row[1])),
        "measured": ("r", lambda row: format_known_bytes(row[2])),
        "difference": ("r", lambda row: format_mib_difference(row[2], row[1])),
        "of predicted": ("r", lambda row: format_difference_share(row[2], row[1])),
    }
    return [table(parts, cells, title="Predicted and measured"), table(phases, cells, title="Phase by phase")]


def ledger_notes(ledger: RunLedger) -> list[tuple[str, str]]:
    """Returns rows (name, text) with the step that the run resumed from, overruns of the budget, and notes."""
    rows: list[tuple[str, str]] = []
    if ledger.resumed_from_step is not None:
        rows.append(("resumed from", f"step {ledger.resumed_from_step:,}"))
    rows += [("over budget", f"at step {overrun.step:,}: {overrun.words()}") for overrun in ledger.overruns]
    rows += [("note", note) for note in ledger.notes]
    return rows


def runs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the output of `plimsoll runs`: a line per run.

    Args:
        rows: Mappings with `name`, `recipe`, `step`, `steps`, `loss`, `best_validation_loss`, `peak_bytes`,
            `budget_bytes` and `state`. A missing value or None is printed as unknown. Runs of puzzles also have
            `exact_accuracy` at the best validation loss, which adds a column.
    """
    if not rows:
        return "no runs here"
    cells: dict[str, Any] = {
        "run": ("l", lambda row: row["name"]),
        "recipe": ("l", lambda row: row.get("recipe") or UNKNOWN),
        "step": ("r", lambda row: f"{known(row.get('step'), ',')}/{known(row.get('steps'), ',')}"),
        "loss": ("r", lambda row: known(row.get("loss"), ".4f")),
        "best validation": ("r", lambda row: known(row.get("best_validation_loss"), ".4f")),
        "exact at best": ("r", lambda row: format_share(row.get("exact_accuracy"), 1)),
        "peak": ("r", lambda row: format_known_bytes(row.get("peak_bytes"))),
        "budget": ("r", lambda row: format_known_bytes(row.get("budget_bytes"))),
        "used": ("r", lambda row: format_share(row.get("peak_bytes"), row.get("budget_bytes"))),
        "state": ("l", lambda row: row.get("state") or UNKNOWN),
    }
    if not any(row.get("exact_accuracy") for row in rows):
        del cells["exact at best"]
    return "\n".join(table(rows, cells).lines(indent=0))
