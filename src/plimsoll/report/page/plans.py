"""Parts of a page that come from a plan: its bytes, its levers with their reasons, other budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planned import Plan
from plimsoll.report.layout import (
    UNKNOWN,
    format_difference_share,
    format_known_bytes,
    format_rate,
    format_share,
    known,
)
from plimsoll.report.page.blocks import (
    Block,
    Budget,
    Columns,
    Folded,
    Heading,
    Items,
    Rows,
    Table,
    Text,
    fragment,
    page,
)
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.units import BYTES, STEP_TIMES, unit_of, used_of
from plimsoll.report.tables import chosen_rows, expected_rows, measured_words, plan_words
from plimsoll.units import format_bytes, format_count, format_seconds

Facts = Mapping[str, Any]

MOST_FAILURES = 8
MOST_BUFFERS = 12
OUTSIDE_THE_STEP = ("async_save", "prefetch", "pinned")
"""Fields of a plan that do not change its step."""


def plan_page(planned: Facts, *, footer: str) -> str:
    """Returns the page of a plan, from the output of `plimsoll plan --json`. `footer` is its last line."""
    peak, budget = planned["predicted_peak_bytes"], planned["budget_bytes"]
    share = f"{format_bytes(peak)} of {format_bytes(budget)}, {format_share(peak, budget)} of the budget"
    seconds = planned.get("step_seconds")
    tokens = planned.get("tokens_per_step")
    count, unit = (tokens, "tokens") if tokens else (planned.get("examples_per_step"), "examples")
    return page(
        title=f"{planned.get('recipe') or 'a plan'} on {planned['plan']['chip']}",
        verdict=[Text(f"A plan that was never run: it expects {share}.", "verdict")],
        facts=[
            ("peak, predicted", used_of(peak, budget)),
            ("bytes", str(planned.get("source", UNKNOWN))),
            ("a step, predicted", known(seconds, format_seconds)),
            ("throughput, predicted", format_rate(count / seconds, unit) if seconds and count else UNKNOWN),
            ("parameters", format_count(planned["parameters"])),
            ("devices", f"{planned.get('devices', 1):,}"),
        ],
        sections=[
            ("The line", [Columns([[budget_bar(planned)], bytes_by_part(planned, {})], "wide")]),
            ("The plan", plan_blocks(planned)),
        ],
        footer=footer,
    )


def plan_in_notebook(planned: Facts) -> str:
    """Returns a plan, given as `Planned.to_dict()`, as HTML for a notebook."""
    peak, budget = format_bytes(planned["predicted_peak_bytes"]), format_bytes(planned["budget_bytes"])
    title = f"{planned['recipe']} on {planned['plan']['chip']}: {peak} of {budget}, predicted"
    blocks = [budget_bar(planned), *bytes_by_part(planned, {}), Heading("The plan"), *plan_blocks(planned)]
    return fragment(title, blocks)


def run_in_notebook(words: Mapping[str, str], planned: Facts, ledger: Facts) -> str:
    """Returns a run as HTML for a notebook: its facts by name, and a table of its bytes if it has a plan."""
    table = bytes_by_part(planned, ledger) if planned else []
    return fragment("", [Rows(rows=list(words.items())), *table])


def budget_bar(planned: Facts) -> Budget:
    """Returns the predicted peak and the budget, to scale."""
    peak, budget = planned["predicted_peak_bytes"], planned["budget_bytes"]
    largest = max(peak, budget, 1)
    percents = (round(100 * size / largest, 1) for size in (peak, budget))
    return Budget(format_bytes(peak), format_bytes(budget), *percents)


def bytes_by_part(planned: Facts, ledger: Facts) -> list[Block]:
    """Returns a table of the components and one of the phases: predicted and, unless `ledger` is empty, measured."""
    parts = ledger.get("components") or {name: {"predicted": size} for name, size in planned["components"].items()}
    parts = dict(sorted(parts.items(), key=lambda item: -(item[1].get("predicted") or 0)))
    peak = {"predicted": planned["predicted_peak_bytes"], "measured": None}
    if ledger:
        peak = {name: ledger[name]["peak_bytes"] for name in peak}

    # Bytes in words, and as bars to scale.
    rows = []
    for name, sizes in {**parts, "peak": peak}.items():
        predicted, measured = sizes.get("predicted"), sizes.get("measured")
        row = [name, format_known_bytes(predicted)]
        if ledger:
            row += [format_known_bytes(measured), format_difference_share(measured, predicted)]
        rows.append(row)
    largest = max((size for sizes in parts.values() for size in sizes.values() if size), default=1)
    styles = {"predicted": "outline", "measured": "filled"} if ledger else {"predicted": "filled"}
    bars = [
        {style: round(100 * sizes[name] / largest, 1) for name, style in styles.items() if sizes.get(name)}
        for sizes in parts.values()
    ]
    each = " of one device" if planned.get("devices", 1) > 1 else ""
    phase, source = planned.get("phase", UNKNOWN), planned.get("source", UNKNOWN)
    legend = "The outline is what was predicted, the bar what was measured." if ledger else "All of it is predicted."
    table = Table(
        title="Where the bytes go",
        header=["component", "predicted", *(["measured", "difference"] if ledger else [])],
        rows=rows,
        caption=f"Bytes{each} at the predicted peak, in the phase {phase} ({source}). {legend}",
        bars=bars,
        has_total=True,
    )
    return [table, _phases(planned, ledger)]


def _phases(planned: Facts, ledger: Facts) -> Folded:
    """Returns the peak of each phase, predicted and measured."""
    predicted = planned.get("phases") or {}
    measured = ledger.get("measured") or {}
    exact, at_most = measured.get("phases") or {}, measured.get("phases_at_most") or {}
    rows = []
    for name in dict.fromkeys([*predicted, *exact, *at_most] if predicted else []):
        row = [name, format_known_bytes(predicted.get(name))]
        if ledger:
            row.append(measured_words(exact.get(name), at_most.get(name), bound="at most "))
        rows.append(row)
    header = ["phase", "predicted peak", *(["measured"] if ledger else [])]
    blocks: list[Block] = [Table(title="Phases of the run", header=header, rows=rows)]
    if ledger and rows:
        blocks.append(Text("Of a phase that stayed below an earlier peak only that peak is known.", "quiet"))
    return Folded("Phase by phase", blocks)


def plan_blocks(planned: Facts) -> list[Block]:
    """Returns the levers, the alternatives, what other budgets would change, and what does not compile."""
    rows = chosen_rows(planned)
    if host := planned.get("host"):
        peak, limit = host["predicted_peak_bytes"], host.get("budget_bytes")
        rows.append(("each host", used_of(peak, limit) if limit else f"{format_bytes(peak)}, no limit was given"))
    rows += expected_rows(planned)

    reasons = [f"Chosen because it is {reason}." for reason in [planned.get("reason")] if reason]
    reasons += [f"{text}." for text in [planned.get("not_compiled")] if text]
    failures = planned.get("left_out") or ()
    more = f" (the first {MOST_FAILURES} of {len(failures)})" if len(failures) > MOST_FAILURES else ""
    return [
        *map(Text, reasons),
        Columns([[Rows(rows=rows)], [_alternatives(planned), *_other_budgets(planned)]], "wide"),
        _frontier(planned),
        Items(title=f"What does not compile here{more}", items=failures[:MOST_FAILURES]),
        _buffers(planned),
    ]


def _alternatives(planned: Facts) -> Block:
    """Returns a table of the plans that also fit, with the reason why each was not chosen."""
    others: Sequence[Facts] = planned.get("alternatives") or ()
    if not others:
        return Text(_without_runner_up(planned))
    rows = [
        (
            plan_words(Plan.from_dict(other["plan"])),
            format_known_bytes(other.get("predicted_peak_bytes")),
            format_seconds(other["step_seconds"]) if other.get("step_seconds") else UNKNOWN,
            other.get("reason", ""),
        )
        for other in others
    ]
    return Table(
        title="Plans that were not chosen",
        header=("plan", "peak", "a step", "why not"),
        rows=rows,
        caption="The next best plans",
        has_names=False,
        words=(0, 3),
    )


def _without_runner_up(planned: Facts) -> str:
    """Returns a sentence in the place of a table of other plans, where none was priced as fully as the chosen one."""
    budget: int = planned["budget_bytes"]
    points: Sequence[Facts] = planned.get("frontier") or ()
    fitting = [point for point in points if not point["chosen"] and point["needed_bytes"] <= budget]
    if not fitting:
        return "No other plan was compared in full."
    count = "one other fits" if len(fitting) == 1 else f"{len(fitting):,} others fit"
    return f"No other plan was compared in full; by what is known of them, {count} the budget (see the chart)."


def _other_budgets(planned: Facts) -> list[Block]:
    """Returns a sentence per other budget, about the plans that the search evaluated and times by the chip's rates."""
    items = []
    for other in planned.get("other_budgets") or ():
        more = other["budget_bytes"] > planned["budget_bytes"]
        size = format_bytes(abs(other["budget_bytes"] - planned["budget_bytes"]))
        budget = f"{size} {'more' if more else 'less'} ({format_bytes(other['budget_bytes'])})"
        items.append(f"{budget}: {_effect(other, planned['plan'], more=more)}")
    return [Items(title="What another budget would change", items=items or ["Nothing was tried."])]


def _effect(other: Facts, plan: Facts, *, more: bool) -> str:
    """Returns the difference between the plan for another budget and the chosen one."""
    changed = other["plan"]
    if changed is None:
        return "none of the plans that were compared fits."

    # Another step: its plan, its pace and its bytes.
    step_fields = {*changed, *plan} - {*OUTSIDE_THE_STEP}
    if any(changed.get(name) != plan.get(name) for name in step_fields):
        ratio = other["step_ratio"]
        share = abs(1 / ratio - 1) if ratio < 1 else ratio - 1
        pace = f"{share:.0%} {'faster' if ratio < 1 else 'slower'}" if round(share, 2) else "as fast"
        peak = format_bytes(other["predicted_peak_bytes"])
        return f"{plan_words(Plan.from_dict(changed))}, {pace} (estimated), with a peak of {peak}."

    # The same step, with other work beside it.
    differences = []
    if changed["async_save"] != plan["async_save"]:
        differences.append("saves beside training" if changed["async_save"] else "training waits for saves")
    if changed["prefetch"] != plan["prefetch"]:
        differences.append(f"{changed['prefetch']} batches made ready")
    if differences:
        return f"the same step; {' and '.join(differences)}."
    return "the same plan: more memory gains nothing." if more else "the same plan."


def _frontier(planned: Facts) -> Columns:
    """Returns the chart of bytes against time, of the plans that nothing beats; nothing if fewer than two are known."""
    points: Sequence[Facts] = sorted(planned.get("frontier") or (), key=lambda point: point["step_seconds"])
    if len(points) < 2:
        return Columns([])
    budget = planned["budget_bytes"]
    unit, unit_name = unit_of(max(budget, *(point["needed_bytes"] for point in points)), BYTES)
    size, size_name = unit_of(points[-1]["step_seconds"], STEP_TIMES)
    estimated = sum(not point["compiled"] for point in points)
    curves = {"plans that no other beats": points, "the chosen plan": [point for point in points if point["chosen"]]}
    lines = [
        Line(
            name=name,
            xs=[point["step_seconds"] / size for point in chosen],
            ys=[point["needed_bytes"] / unit for point in chosen],
            is_marked=True,
        )
        for name, chosen in curves.items()
        if chosen
    ]
    chart = Chart(
        title="Bytes against time",
        caption="What another GiB would gain, and what one less would cost: no plan is both smaller and faster than one"
        f" of these. {estimated:,} of {len(points):,} were not compiled; their figures are estimates.",
        x_label=f"time of a step, {size_name}",
        y_label=f"smallest budget, {unit_name}",
        lines=lines,
        limits=[(f"budget: {format_bytes(budget)}", budget / unit)],
        from_zero=True,
    )
    return Columns([[chart]])


def _buffers(planned: Facts) -> Folded:
    """Returns the largest temporaries, with their lines of source."""
    buffers: Sequence[Facts] = planned.get("largest_buffers") or ()
    rows = [
        (format_bytes(buffer["bytes"]), *(str(buffer[name]) for name in ("shape", "what", "place")))
        for buffer in buffers[:MOST_BUFFERS]
    ]
    title = "The largest temporaries of a step"
    header = ("bytes", "shape", "operation", "place in the source")
    return Folded(title, [Table(title=title, header=header, rows=rows, has_names=False, words=(1, 2, 3))])
