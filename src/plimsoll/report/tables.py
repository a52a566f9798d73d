"""A plan, a ledger and a list of runs as plain text that a terminal, a log and a pull request show alike.

There are no colours and no line-drawing characters in it. Shares of the components are of the peak, and the
share of the peak is of the budget; each says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.registry import LEVERS, in_words
from plimsoll.planned import Largest, Plan, Planned, TriedValue
from plimsoll.report.layout import (
    UNKNOWN,
    Cells,
    all_labelled,
    columns,
    format_difference_share,
    format_known_bytes,
    format_mib_difference,
    format_rate,
    format_share,
    known,
    labelled,
    table,
)
from plimsoll.units import MIB, format_bytes, format_count, format_seconds

SCALING: Cells = {
    "devices": ("r", lambda row: str(row.devices)),
    "each sends": ("r", lambda row: format_bytes(row.sent_bytes)),
    "step": ("r", lambda row: format_seconds(row.step_seconds)),
    "efficiency": ("r", lambda row: f"{row.efficiency:.0%}"),
    "from, to": ("r", lambda row: " to ".join(f"{each:.0%}" for each in row.efficiency_range)),
}


def plan_table(planned: Planned) -> str:
    """Returns the text of `plimsoll plan`: levers, bytes, time, the reason for the choice and the alternatives."""
    facts, peak, budget = planned.to_dict(), planned.ledger.predicted_peak_bytes, planned.ledger.budget_bytes
    whose = "process" if planned.plan.chip == "cpu" else "device"  # the devices of a CPU share one memory
    where = "" if planned.devices == 1 else f" x {planned.devices}, bytes of each {whose}"
    lines = [
        f"plan for {planned.recipe} on {planned.plan.chip}{where}: "
        f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak, budget)} of the budget)",
        "",
        *all_labelled([*largest_rows(planned.largest_found), *chosen_rows(facts)]),
        "",
        *_memory(planned),
        *all_labelled(expected_rows(facts)),
    ]
    if planned.scaling:
        title = (
            "the same step on other numbers of devices, estimated from the chip's rates (from nothing that is sent"
            " hidden behind arithmetic to all that may be)"
        )
        lines += ["", title, *table(planned.scaling, SCALING), ""]
    lines += labelled("why", planned.reason)
    lines += labelled("caution", planned.not_compiled) if planned.not_compiled else []
    lines += all_labelled(("does not compile", text) for text in planned.left_out)
    for rank, other in enumerate(planned.alternatives):
        seconds = "time unknown" if other.step_seconds is None else format_seconds(other.step_seconds)
        price = f"{format_bytes(other.peak_bytes)}, step {seconds}"
        lines += labelled("runner-up" if rank == 0 else "", f"{plan_words(other.plan)}: {price}")
        lines += labelled("", other.reason)
    return "\n".join(lines)


def largest_rows(largest: Largest | None) -> list[tuple[str, str]]:
    """Returns the value that `--largest` has found, and the values on the way to it; nothing of another plan."""
    if largest is None:
        return []
    return [(f"largest {largest.option}", largest.reason), ("found by", ", ".join(map(_tried_words, largest.tried)))]


def _tried_words(tried: TriedValue) -> str:
    """Returns like `12,416 (22,630.5 MiB, too much, whatever the levers)`.

    Values without the last had the levers of the smallest plan of one near to them.
    """
    size = "refused" if tried.needed_bytes is None else f"{tried.needed_bytes / MIB:,.1f} MiB"
    too_much = "" if tried.fits or tried.needed_bytes is None else ", too much"
    return f"{tried.value:,} ({size}{too_much}{', whatever the levers' if tried.free else ''})"


def chosen_rows(planned: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what was chosen, from `Planned.to_dict()` or a run's `plan.json`: a name and words for each row."""
    plan, devices = Plan.from_dict(planned["plan"]), planned.get("devices", 1)
    spread = "1"
    if devices > 1:
        state = "a whole copy of the state on each"
        state = state if plan.fsdp == 1 else f"the state split over {plan.fsdp} of them"
        each = plan.micro_batch // devices
        spread = f"{devices}: {each} example{'s' * (each != 1)} of a micro-batch on each, {state}"
    return [
        ("parameters", format_count(planned["parameters"])),
        *lever_rows(plan).items(),
        ("devices", spread),
        ("set by you", ", ".join(map(flag_of, plan.pinned)) or "nothing: the planner chose all of these"),
    ]


def expected_rows(planned: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the recipe's remarks, how far predictions may be off, the disk and the time of a step.

    They are of the same facts as `chosen_rows`.

    A plan.json of an earlier version may lack any of it.
    """
    rows = [(remark["name"], remark["text"]) for remark in planned.get("remarks", ())]
    if band := planned.get("estimate_band"):
        less, more = (f"{100 * abs(band[end]):.0f} %" for end in ("lowest", "highest"))
        lowest, highest = band["lowest_peak_bytes"], band["highest_peak_bytes"]
        beyond = highest - planned["budget_bytes"]
        text = (
            f"without a compiler. For {band['plans']} plans that were also compiled, the compiler took from {less} less"
            f" to {more} more temporary memory than estimated (docs/chips.md): a peak from {format_bytes(lowest)} to"
            f" {format_bytes(highest)}"
        )
        text += f", which is {format_bytes(beyond)} over the budget" if beyond > 0 else ""
        rows.append(("estimated", text))
    if reason := planned.get("without_cudnn"):
        rows.append(("not cuDNN's attention", reason))
    if margin := planned.get("margin_bytes"):
        rows.append(("margin", f"{format_bytes(margin)}: this run exceeded its budget before"))
    if (earlier := planned.get("error_band")) and earlier["sessions"]:
        lowest, highest, median = (
            format_mib_difference(earlier[f"{name}_bytes"], 0) for name in ("lowest", "highest", "median")
        )
        sessions = f"{earlier['sessions']} session{'s' * (earlier['sessions'] != 1)}"
        text = f"{lowest.removesuffix(' MiB')} .. {highest} over {sessions}, median {median} (measured minus predicted)"
        rows.append(("error band", text))
    elif earlier:
        rows.append(("error band", "no run of this kind seen yet"))
    if disk := planned.get("disk"):
        size, count, total = (disk[name] for name in ("checkpoint_bytes", "kept_at_once", "bytes"))
        rows.append(("disk", f"{format_bytes(total)} for {count} checkpoints of {format_bytes(size)} at once"))
    if sent := planned.get("sent_bytes"):
        hidden = f"{planned['hidden_share']:.0%} of the time that takes is hidden behind kernels"
        if (most := planned.get("hidden_at_most", 1.0)) < 1:
            hidden = f"{most:.0%} of that beside other work, by the compiled order, and {1 - most:.0%} alone"
        rows.append(("sent, as compiled", f"{format_bytes(sent)} by each device in a step; {hidden}"))
    text = "time unknown: no rates for this chip (`plimsoll plan --measure` times it)"
    if seconds := planned.get("step_seconds"):
        counts = {unit: planned.get(f"{unit}_per_step") for unit in ("tokens", "examples")}
        rates = ", ".join(format_rate(count / seconds, unit) for unit, count in counts.items() if count)
        source = planned.get("step_seconds_source", UNKNOWN)
        if between := planned.get("step_seconds_range"):
            how = "by the chip's rates" if source == "roofline" else "estimated"
            source = f"{how}, {' to '.join(map(format_seconds, between))}"
        text = f"{format_seconds(seconds)} ({source}): {rates}"
    return [*rows, ("step", text)]


def flag_of(lever: str) -> str:
    """Returns a lever's option, also of one that is not registered here."""
    return f"--{lever.replace('_', '-')}"


def lever_rows(plan: Plan) -> dict[str, str]:
    """Returns each lever's name and value in words; of those that most plans leave off, only what is on."""
    rows = (LEVERS[name].table_row(value, plan) for name, value in plan.levers.items())
    return dict(row for row in rows if row is not None)


def plan_words(plan: Plan) -> str:
    """Returns a plan in one line: `micro-batch 8 x 8, remat dots, loss chunk 1024, bfloat16`."""
    off = {name: lever.plain for name, lever in LEVERS.items() if name not in ("remat", "precision")}
    pulled = {name: value for name, value in plan.levers.items() if name not in off or value != off[name]}
    return f"micro-batch {plan.micro_batch} x {plan.accumulation}, {in_words(pulled)}"


def _memory(planned: Planned) -> list[str]:
    """Returns the components at the peak, the peak of each phase, and the host's components where it has its own."""
    ledger, host = planned.ledger, planned.ledger.host
    lines = [
        f"bytes at the predicted peak, in the phase `{ledger.phase}` ({ledger.source})",
        *_components(ledger.predicted, ledger.predicted_peak_bytes),
    ]
    if ledger.spare_bytes:
        spare = format_bytes(ledger.spare_bytes)
        lines.append(f"  and {spare} kept free, because peaks of one plan differ from run to run")
    lines.append("")
    if ledger.phases:
        rows = [
            (name, format_bytes(size), "<- peak" if name == ledger.phase else "")
            for name, size in ledger.phases.items()
        ]
        lines += ["predicted peak of each phase", *columns(rows, align="lrl"), ""]
    if host is not None:
        peak, budget = host.predicted_peak_bytes, host.budget_bytes
        limit = "no limit given" if budget is None else f"of {format_bytes(budget)}"
        lines += [
            f"each host: {format_bytes(peak)} ({limit}) at its peak, in the phase `{host.phase}`, not counting the"
            " driver",
            *_components(host.predicted, peak),
            "",
        ]
    return lines


def _components(predicted: Mapping[str, int], peak: int) -> list[str]:
    largest_first = sorted(predicted.items(), key=lambda item: -item[1])
    rows = [(name, format_bytes(size), format_share(size, peak)) for name, size in [*largest_first, ("peak", peak)]]
    return columns(rows, align="lrr")


def buffers_table(planned: Planned) -> str:
    """Returns what `plimsoll plan --buffers` adds: the step's largest temporaries and their lines of source."""
    if not planned.largest_buffers:
        estimated = planned.ledger.source == "estimated"
        why = "no compiler was used (`plimsoll chips --install`)" if estimated else "the compiler does not say"
        return f"largest temporary arrays of the step: {why}"
    rows = [
        (format_bytes(buffer.bytes), buffer.shape, buffer.what, buffer.place or UNKNOWN)
        for buffer in planned.largest_buffers
    ]
    title = "largest temporary arrays at the peak of a step, and the lines of code that make them"
    return "\n".join([title, *columns(rows, align="rlll")])


def frontier_table(planned: Planned) -> str:
    """Returns what `plimsoll plan --frontier` adds: bytes against time, every plan that nothing beats.

    A line shows where the budget is.
    """
    rows, budget = [], planned.ledger.budget_bytes
    over = [point.needed_bytes > budget for point in planned.frontier]
    for number, point in enumerate(planned.frontier):
        if over[number] and not any(over[:number]):
            rows.append((format_bytes(budget), "", "the budget", ""))
        words = f"micro-batch {point.plan.micro_batch}, {in_words(point.plan.levers)}"
        how = "chosen" if point.chosen else "" if point.compiled else "estimated, not compiled"
        rows.append((format_bytes(point.needed_bytes), format_seconds(point.step_seconds), words, how))
    title = "smallest budget and step time of each plan that no other plan beats in both"
    return "\n".join([title, *columns(rows, align="rrll")])


def ledger_table(ledger: Mapping[str, Any]) -> str:
    """Returns a run's `ledger.json` as a table: predicted, measured, and measured minus predicted.

    The first line says whether the measured peak stayed within the budget, which is the reader's question.
    """
    predicted, measured, budget = ledger["predicted"], ledger["measured"], ledger["budget_bytes"]
    expected, peak = predicted["peak_bytes"], measured["peak_bytes"]
    source = f"predicted {format_bytes(expected)}, {ledger['source']}, phase `{ledger['phase']}`"
    verdict = f"peak not measured yet; budget {format_bytes(budget)} ({source})"
    if peak is not None:
        share = f"{format_share(peak, budget)} of the budget"
        verdict = f"measured peak {format_bytes(peak)} of {format_bytes(budget)}, {share} ({source})"
        if peak > budget:
            verdict = f"OVER THE BUDGET by {format_bytes(peak - budget)}: {verdict}"
    before, after, below = predicted.get("phases", {}), measured.get("phases", {}), measured.get("phases_at_most", {})
    components = sorted(ledger["components"].items(), key=lambda item: -item[1]["predicted"])
    rows = [(name, both["predicted"], both["measured"], None) for name, both in components]
    rows.append(("peak", expected, peak, None))
    names = dict.fromkeys([*before, *after, *below])
    phases = [(f"phase {name}", *(sizes.get(name) for sizes in (before, after, below))) for name in names]
    cells: Cells = {
        "": ("l", lambda row: row[0]),
        "predicted": ("r", lambda row: format_known_bytes(row[1])),
        "measured": ("r", lambda row: measured_words(row[2], row[3])),
        "difference": ("r", lambda row: format_mib_difference(row[2], row[1])),
        "of predicted": ("r", lambda row: format_difference_share(row[2], row[1])),
    }
    compared = table([*rows, *phases], cells)
    if phases:
        compared.insert(len(rows) + 1, "")
    lines = [verdict, "", *compared]
    resumed = ledger.get("resumed_from_step")
    lines += [] if resumed is None else ["", *labelled("resumed from", f"step {resumed:,}")]
    lines += all_labelled(("over budget", overrun_words(overrun)) for overrun in ledger.get("overruns", ()))
    lines += all_labelled(("note", note) for note in ledger.get("notes", ()))
    return "\n".join(lines)


def measured_words(size: int | None, at_most: int | None, *, bound: str = "<= ") -> str:
    """Returns measured bytes of a phase; of one that stayed below an earlier peak, that peak as a bound."""
    return format_known_bytes(size) if size is not None or at_most is None else f"{bound}{format_bytes(at_most)}"


def overrun_words(overrun: Mapping[str, Any]) -> str:
    """Returns an entry of `ledger.json`'s `overruns` in words.

    An example: `at step 12: 431.0 MiB resident in process 1; 352.1 MiB predicted, budget 400.0 MiB`.
    """
    measured, predicted, budget = (
        format_bytes(overrun[f"{name}_bytes"]) for name in ("measured", "predicted", "budget")
    )
    refused = f"in use when the allocator refused more ({overrun['said']})"
    process = overrun.get("process")  # None of a process alone
    resident = "resident" if process is None else f"resident in process {process}"
    what = resident if overrun["what"] == "resident set" else refused
    return f"at step {overrun['step']:,}: {measured} {what}; {predicted} predicted, budget {budget}"


def runs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns what `plimsoll runs` prints: a line per run.

    Args:
        rows: Mappings with `name`, `recipe`, `step`, `steps`, `loss`, `best_validation_loss`, `peak_bytes`,
            `budget_bytes` and `state`; a missing value or None prints as unknown. Runs of puzzles have
            `exact_accuracy` at the best validation loss, which adds a column. Runs of several processes have
            `processes`, the slowest first, and the number of a `straggler`; below the line, each has its own.
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
    if not any("exact_accuracy" in row for row in rows):
        del cells["exact at best"]
    head, *lines = table(rows, cells, indent=0)
    return "\n".join([head, *(line for row, own in zip(rows, lines, strict=True) for line in (own, *_of_each(row)))])


PROCESS_CELLS: dict[str, Any] = {
    "process": ("r", lambda row: str(row["process"])),
    "host": ("l", lambda row: row["host"]),
    "peak": ("r", lambda row: format_known_bytes(row["peak_bytes"])),
    "a step": ("r", lambda row: format_seconds(row["step_seconds"])),
    "of it, waiting for data": ("r", lambda row: format_share(row["data_seconds"], row["step_seconds"])),
    "by itself": ("r", lambda row: format_seconds(row["own_seconds"])),
}
"""Columns of the table of a run's processes: by itself is what a step would take if all were as fast as that one."""


def _of_each(row: Mapping[str, Any]) -> list[str]:
    """Returns a table of the processes of a run, the slowest first; no lines for a run of one process."""
    if "processes" not in row:
        return []
    lines = table(row["processes"], PROCESS_CELLS, indent=4)
    slow = row.get("straggler")
    return lines + ([] if slow is None else [f"    the others wait for process {slow}"])
