"""A plan, a ledger and a list of runs as plain text that a terminal, a log and a pull request show alike.

There are no colours and no line-drawing characters in it. Shares of the components are of the peak, and the
share of the peak is of the budget; each says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.registry import LEVERS, in_words
from plimsoll.planned import Alternative, Plan, Planned, Scaled
from plimsoll.report.layout import (
    UNKNOWN,
    columns,
    format_difference_share,
    format_known_bytes,
    format_mib_difference,
    format_rate,
    format_share,
    labelled,
)
from plimsoll.units import format_bytes, format_count, format_seconds


def plan_table(planned: Planned) -> str:
    """What `plimsoll plan` prints: the plan, its bytes, its time, the reasons."""
    ledger = planned.ledger
    peak, budget = ledger.predicted_peak_bytes, ledger.budget_bytes
    whose = "process" if planned.plan.chip == "cpu" else "device"  # the devices of a CPU have one memory
    where = "" if planned.devices == 1 else f" x {planned.devices}, bytes of each {whose}"
    return "\n".join(
        [
            f"plan for {planned.recipe} on {planned.plan.chip}{where}: "
            f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak, budget)} of the budget)",
            "",
            *_levers(planned),
            "",
            f"bytes at the predicted peak, in the phase `{ledger.phase}` ({ledger.source})",
            *_components(ledger.predicted, peak),
            *([f"  and {format_bytes(ledger.spare_bytes)} of the budget to spare"] if ledger.spare_bytes else []),
            "",
            *_phases(ledger.phases, ledger.phase),
            *_host(planned),
            *_estimate_band(planned),
            *_error_band(planned),
            *_disk(planned.disk),
            *_speed(planned),
            *_scaling(planned.scaling),
            *labelled("why", planned.reason),
            *(line for text in planned.left_out for line in labelled("does not compile", text)),
            *_alternatives(planned),
        ]
    )


def _levers(planned: Planned) -> list[str]:
    rows = {
        "parameters": format_count(planned.parameters),
        **lever_rows(planned.plan),
        "devices": _devices(planned),
        "pinned": ", ".join(planned.plan.pinned) or "nothing",
    }
    return [line for label, text in rows.items() for line in labelled(label, text)]


def lever_rows(plan: Plan) -> dict[str, str]:
    """Returns each lever's name and value in words; of those that most plans leave off, only what is on."""
    rows = (LEVERS[name].table_row(value, plan) for name, value in plan.levers.items())
    return dict(row for row in rows if row is not None)


def _devices(planned: Planned) -> str:
    devices, fsdp = planned.devices, planned.plan.fsdp
    if devices == 1:
        return "1"
    state = "a whole copy of the state on each" if fsdp == 1 else f"the state split over {fsdp} of them"
    return f"{devices}: {planned.plan.micro_batch // devices} examples of a micro-batch on each, {state}"


def _scaling(scaled: Sequence[Scaled]) -> list[str]:
    if not scaled:
        return []
    rows = [
        (str(one.devices), format_bytes(one.sent_bytes), format_seconds(one.step_seconds), f"{one.efficiency:.0%}")
        for one in scaled
    ]
    head = ("devices", "each sends", "step", "efficiency")
    return ["", "the same step on other numbers of them, by the rates", *columns([head, *rows], align="rrrr"), ""]


def _host(planned: Planned) -> list[str]:
    host = planned.ledger.host
    if host is None:
        return []
    peak, budget = host.predicted_peak_bytes, host.budget_bytes
    of = "no limit given" if budget is None else f"of {format_bytes(budget)}"
    head = f"each host: {format_bytes(peak)} ({of}) at its peak, in the phase `{host.phase}`, without its driver"
    return [head, *_components(host.predicted, peak), ""]


def _components(predicted: Mapping[str, int], peak: int) -> list[str]:
    largest_first = sorted(predicted.items(), key=lambda item: -item[1])
    rows = [(name, format_bytes(size), format_share(size, peak)) for name, size in largest_first]
    return columns([*rows, ("peak", format_bytes(peak), format_share(peak, peak))], align="lrr")


def _phases(phases: Mapping[str, int], peak_phase: str) -> list[str]:
    if not phases:
        return []
    rows = [(name, format_bytes(size), "<- peak" if name == peak_phase else "") for name, size in phases.items()]
    return ["predicted peak of each phase", *columns(rows, align="lrl"), ""]


def _estimate_band(planned: Planned) -> list[str]:
    band, budget = planned.estimate_band, planned.ledger.budget_bytes
    if band is None:
        return []
    less, more = (f"{100 * abs(band[end]):.0f} %" for end in ("lowest", "highest"))
    lowest, highest = band["lowest_peak_bytes"], band["highest_peak_bytes"]
    text = (
        f"no compiler was asked. Of {band['plans']} plans that were shown to one, it took from {less} less to {more}"
        f" more temporaries than estimated (docs/chips.md): a peak from {format_bytes(lowest)} to"
        f" {format_bytes(highest)}"
    )
    over = f", which is {format_bytes(highest - budget)} over the budget" if highest > budget else ""
    return labelled("estimated", text + over)


def _error_band(planned: Planned) -> list[str]:
    """Of earlier predictions of this kind; and what this run itself has taught."""
    band, lines = planned.error_band, []
    if planned.margin_bytes:
        lines += labelled("margin", f"{format_bytes(planned.margin_bytes)}: this run went over its budget before")
    if band is None:
        return lines
    if not band["sessions"]:
        return [*lines, *labelled("error band", "no run of this kind seen yet")]
    lowest, highest, median = (
        format_mib_difference(band[f"{name}_bytes"], 0) for name in ("lowest", "highest", "median")
    )
    sessions = f"{band['sessions']} session{'s' * (band['sessions'] != 1)}"
    text = f"{lowest.removesuffix(' MiB')} .. {highest} over {sessions}, median {median} (measured minus predicted)"
    return [*lines, *labelled("error band", text)]


def _disk(disk: Mapping[str, int]) -> list[str]:
    if not disk:
        return []
    one, times, together = (disk[name] for name in ("checkpoint_bytes", "kept_at_once", "bytes"))
    return labelled("disk", f"{format_bytes(together)} for {times} checkpoints of {format_bytes(one)} at once")


def _speed(planned: Planned) -> list[str]:
    if planned.step_seconds is None:
        return labelled("step", "time unknown: no rates for this chip (`plimsoll plan --measure` times it)")
    rates = [format_rate(planned.examples_per_step / planned.step_seconds, "examples")]
    if planned.tokens_per_step is not None:
        rates.insert(0, format_rate(planned.tokens_per_step / planned.step_seconds, "tokens"))
    text = f"{format_seconds(planned.step_seconds)} ({planned.step_seconds_source}): {', '.join(rates)}"
    return labelled("step", text)


def _alternatives(planned: Planned) -> list[str]:
    lines = []
    for place, other in enumerate(planned.alternatives):
        label = "runner-up" if place == 0 else ""
        lines += labelled(label, f"{plan_words(other.plan)}: {_price(other)}")
        lines += labelled("", other.reason)
    return lines


def buffers_table(planned: Planned) -> str:
    """What `plimsoll plan --buffers` adds: the largest temporaries of the step and the lines they come from."""
    if not planned.largest_buffers:
        estimated = planned.ledger.source == "estimated"
        why = "no compiler was asked (`plimsoll chips --install`)" if estimated else "the compiler does not say"
        return f"largest temporaries of the step: {why}"
    rows = [(format_bytes(one.bytes), one.shape, one.what, one.place or UNKNOWN) for one in planned.largest_buffers]
    title = "largest temporaries when the step needs most, and the lines they come from"
    return "\n".join([title, *columns(rows, align="rlll")])


def plan_words(plan: Plan) -> str:
    """Returns a plan in one line: `micro-batch 8 x 8, remat dots, loss chunk 1024, bfloat16`."""
    off = {name: lever.plain for name, lever in LEVERS.items() if name not in ("remat", "precision")}
    pulled = {name: value for name, value in plan.levers.items() if name not in off or value != off[name]}
    return f"micro-batch {plan.micro_batch} x {plan.accumulation}, {in_words(pulled)}"


def _price(other: Alternative) -> str:
    seconds = "time unknown" if other.step_seconds is None else format_seconds(other.step_seconds)
    return f"{format_bytes(other.peak_bytes)}, step {seconds}"


def ledger_table(ledger: Mapping[str, Any]) -> str:
    """Predicted beside measured, from a run's `ledger.json`; the difference is measured minus predicted."""
    predicted, measured = ledger["predicted"], ledger["measured"]
    before, after = predicted.get("phases", {}), measured.get("phases", {})
    components = sorted(ledger["components"].items(), key=lambda item: -item[1]["predicted"])
    rows = [(name, both["predicted"], both["measured"]) for name, both in components]
    phases = [(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    compared = [
        *(_compared(*row) for row in [*rows, ("peak", predicted["peak_bytes"], measured["peak_bytes"])]),
        *([("", "", "", "", "")] if phases else []),
        *(_compared(f"phase {name}", *both) for name, *both in phases),
    ]
    header = ("", "predicted", "measured", "difference", "of predicted")
    lines = [_verdict(ledger), "", *columns([header, *compared], align="lrrrr")]
    resumed = ledger.get("resumed_from_step")
    lines += [] if resumed is None else ["", *labelled("resumed from", f"step {resumed:,}")]
    for overrun in ledger.get("overruns", ()):
        lines += labelled("went over", overrun_words(overrun))
    for note in ledger.get("notes", ()):
        lines += labelled("note", note)
    return "\n".join(lines)


def overrun_words(overrun: Mapping[str, Any]) -> str:
    """One entry of `ledger.json`'s `overruns`: `at step 12: 431.0 MiB resident, 352.1 MiB predicted, ...`."""
    measured, predicted, budget = (
        format_bytes(overrun[f"{name}_bytes"]) for name in ("measured", "predicted", "budget")
    )
    what = "resident" if overrun["what"] == "resident set" else f"in use, and more refused ({overrun['said']})"
    return f"at step {overrun['step']:,}: {measured} {what}; {predicted} predicted, budget {budget}"


def _compared(name: str, predicted: int | None, measured: int | None) -> tuple[str, ...]:
    return (
        name,
        format_known_bytes(predicted),
        format_known_bytes(measured),
        format_mib_difference(measured, predicted),
        format_difference_share(measured, predicted),
    )


def _verdict(ledger: Mapping[str, Any]) -> str:
    """The first line says whether the line held, because that is the question."""
    budget, measured = ledger["budget_bytes"], ledger["measured"]["peak_bytes"]
    predicted = ledger["predicted"]["peak_bytes"]
    said = f"predicted {format_bytes(predicted)}, {ledger['source']}, phase `{ledger['phase']}`"
    if measured is None:
        return f"peak not measured yet; budget {format_bytes(budget)} ({said})"
    share = f"{format_share(measured, budget)} of the budget"
    line = f"measured peak {format_bytes(measured)} of {format_bytes(budget)}, {share} ({said})"
    return line if measured <= budget else f"OVER THE BUDGET by {format_bytes(measured - budget)}: {line}"


def runs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What `plimsoll runs` prints: a run a line.

    Keys: `name`, `recipe`, `step`, `steps`, `loss`, `best_validation_loss`, `peak_bytes`, `budget_bytes`,
    `state`; one that is missing or None prints as unknown. Runs of puzzles have `exact_accuracy`, where the validation
    loss was best: a column, where there are any.
    """
    if not rows:
        return "no runs here"
    header = ("run", "recipe", "step", "loss", "best validation", "peak", "budget", "used", "state")
    table, align = [header, *map(_run, rows)], "llrrrrrrl"
    if any("exact_accuracy" in row for row in rows):
        exact = ["exact there", *(_share(row.get("exact_accuracy")) for row in rows)]
        table = [(*line[:5], cell, *line[5:]) for line, cell in zip(table, exact, strict=True)]
        align = "llrrrrrrrl"
    return "\n".join(columns(table, align=align, indent=0))


def _run(row: Mapping[str, Any]) -> tuple[str, ...]:
    peak, budget = row.get("peak_bytes"), row.get("budget_bytes")
    return (
        row["name"],
        row.get("recipe") or UNKNOWN,
        f"{_count(row.get('step'))}/{_count(row.get('steps'))}",
        _loss(row.get("loss")),
        _loss(row.get("best_validation_loss")),
        format_known_bytes(peak),
        format_known_bytes(budget),
        UNKNOWN if peak is None or not budget else format_share(peak, budget),
        row.get("state") or UNKNOWN,
    )


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def _share(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def _loss(loss: float | None) -> str:
    return UNKNOWN if loss is None else f"{loss:.4f}"
