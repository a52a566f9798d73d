"""Parts of a page that come from a plan: its bytes, what was chosen and why, and what another budget would buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planned import Plan
from plimsoll.report.layout import UNKNOWN, format_difference_share, format_known_bytes, format_share
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.learning import BYTES, unit_of
from plimsoll.report.page.markup import Markup, element, joined, scrolling, shortened, table
from plimsoll.report.tables import chosen_rows, expected_rows, measured_words, plan_words
from plimsoll.units import format_bytes, format_seconds

Facts = Mapping[str, Any]

BAR_WIDTH = 100
STEP_TIMES = (1.0, "seconds"), (1e-3, "ms")


def line_picture(planned: Facts) -> Markup:
    """Returns a picture of the predicted peak and the budget, to scale."""
    peak, budget = planned["predicted_peak_bytes"], planned["budget_bytes"]
    to_scale = 460 / (1.06 * max(peak, budget, 1))
    line, end = round(10 + budget * to_scale, 1), round(peak * to_scale, 1)
    words = f"predicted peak {format_bytes(peak)}, budget {format_bytes(budget)}"
    return element(
        "svg",
        element("rect", x=10, y=24, width=round(budget * to_scale, 1), height=26, class_="bar room"),
        element("rect", x=10, y=24, width=end, height=26, class_="bar"),
        element("path", d=f"M{line} 16V58", class_="level line"),
        element("text", f"budget: {format_bytes(budget)}", x=line - 4, y=14, text_anchor="end", class_="on line"),
        element("text", f"predicted peak: {format_bytes(peak)}", x=10, y=70),
        viewBox="0 0 480 78",
        width="100%",
        role="img",
        aria_label=f"A bar to scale: {words}.",
        style="max-width: 640px",
    )


def where_the_bytes_go(planned: Facts, ledger: Facts) -> Markup:
    """Returns a table of the components and of the phases: predicted and, unless `ledger` is empty, measured."""
    both = ledger["components"] if ledger else {name: {"predicted": of} for name, of in planned["components"].items()}
    rows = sorted(both.items(), key=lambda item: -(item[1].get("predicted") or 0))
    peak = ledger["predicted"]["peak_bytes"] if ledger else planned["predicted_peak_bytes"]
    measured = ledger["measured"]["peak_bytes"] if ledger else None
    largest = max((part.get(which) or 0 for _, part in rows for which in ("predicted", "measured")), default=1) or 1
    body = [*rows, ("peak", {"predicted": peak, "measured": measured})]
    cells = []
    for at, (name, part) in enumerate(body):
        sizes = part.get("predicted"), part.get("measured")
        row: list[object] = [shortened(name, most=60), format_known_bytes(sizes[0])]
        if ledger:
            row += [format_known_bytes(sizes[1]), format_difference_share(sizes[1], sizes[0])]
        cells.append([*row, _bar(*sizes, largest, bool(ledger)) if at < len(rows) else None])
    phase, source = planned.get("phase", UNKNOWN), planned.get("source", UNKNOWN)
    each = " of one device" if planned.get("devices", 1) > 1 else ""
    legend = "The outline is what was predicted, the bar what was measured." if ledger else "All of it is predicted."
    bytes_table = table(
        cells,
        header=["component", "predicted", *(["measured", "difference"] if ledger else []), ""],
        caption=f"Bytes{each} at the predicted peak, in the phase {phase} ({source}). {legend}",
        total=True,
    )
    return joined(scrolling(bytes_table, name="Where the bytes go"), _phases(planned, ledger))


def _bar(predicted: int | None, measured: int | None, largest: int, has_ledger: bool) -> Markup:
    """Returns a bar to scale. Hidden from screen readers, because the numbers are in the same row."""

    def width(size: int) -> float:
        return round(max(0.4, BAR_WIDTH * size / largest), 1)

    filled = measured if has_ledger else predicted
    parts = []
    if filled:
        parts.append(element("rect", x=0, y=4, width=width(filled), height=10, class_="bar"))
    if predicted and has_ledger:
        parts.append(element("rect", x=0.7, y=1.5, width=width(predicted), height=15, class_="bar predicted"))
    return element(
        "svg", *parts, class_="bars", viewBox=f"0 0 {BAR_WIDTH + 2} 18", preserveAspectRatio="none", aria_hidden="true"
    )


def _phases(planned: Facts, ledger: Facts) -> Markup | None:
    """Returns a folded table of the peak of each phase, predicted and measured."""
    before = planned.get("phases") or {}
    measured = ledger.get("measured") or {}
    after, below = measured.get("phases") or {}, measured.get("phases_at_most") or {}
    if not before:
        return None
    rows = []
    for name in dict.fromkeys([*before, *after, *below]):
        seen = [measured_words(after.get(name), below.get(name), bound="at most ")] if ledger else []
        rows.append([shortened(name, most=60), format_known_bytes(before.get(name)), *seen])
    phases = table(rows, header=["phase", "predicted peak", *(["measured"] if ledger else [])])
    note = "Of a phase that stayed below an earlier peak only that peak is known." if ledger else None
    return element(
        "details",
        element("summary", "Phase by phase"),
        scrolling(phases, name="Phases of the run"),
        element("p", note, class_="quiet"),
    )


def the_plan(planned: Facts) -> Markup:
    """Returns the levers, the alternatives, what other budgets would change, and what does not compile."""
    rows = chosen_rows(planned)
    if host := planned.get("host"):
        peak, limit = host["predicted_peak_bytes"], host.get("budget_bytes")
        rows.append(("each host", used_of(peak, limit) if limit else f"{format_bytes(peak)}, no limit was given"))
    rows += expected_rows(planned)
    levers = [joined(element("dt", name), element("dd", shortened(text))) for name, text in rows]
    failures = [element("li", shortened(text)) for text in planned.get("left_out") or ()]
    more = f" (the first 8 of {len(failures)})" if len(failures) > 8 else ""
    return joined(
        element("p", f"Chosen because it is {planned['reason']}.") if planned.get("reason") else None,
        element("p", f"{text}.") if (text := planned.get("not_compiled")) else None,
        element(
            "div",
            element("dl", *levers, class_="levers"),
            element("div", _alternatives(planned), _other_budgets(planned), class_="beside"),
            class_="pair wide",
        ),
        _frontier(planned),
        joined(element("h3", f"What does not compile here{more}"), element("ul", *failures[:8])) if failures else None,
        _buffers(planned),
    )


def _alternatives(planned: Facts) -> Markup:
    """Returns a table of the plans that also fit, with the reason why each was not chosen."""
    others: Sequence[Facts] = planned.get("alternatives") or ()
    if not others:
        return element("p", _without_runner_up(planned))
    rows = [
        (
            plan_words(Plan.from_dict(other["plan"])),
            format_known_bytes(other.get("predicted_peak_bytes")),
            format_seconds(other["step_seconds"]) if other.get("step_seconds") else UNKNOWN,
            shortened(other.get("reason", "")),
        )
        for other in others
    ]
    header, caption = ("plan", "peak", "a step", "why not"), "The next best plans"
    plans = table(rows, header=header, caption=caption, names=False, words=(0, 3))
    return scrolling(plans, name="Plans that were not chosen")


def _without_runner_up(planned: Facts) -> str:
    """Returns a sentence in the place of a table of other plans, where none was priced as fully as the chosen one."""
    budget: int = planned["budget_bytes"]
    points: Sequence[Facts] = planned.get("frontier") or ()
    fit = sum(not point["chosen"] and point["needed_bytes"] <= budget for point in points)
    if not fit:
        return "No other plan was compared in full."
    count = "one other fits" if fit == 1 else f"{fit:,} others fit"
    return f"No other plan was compared in full; by what is known of them, {count} the budget (see the chart)."


def _other_budgets(planned: Facts) -> Markup:
    """Returns a sentence per other budget, about the plans that the search evaluated and times by the chip's rates."""
    title = element("h3", "What another budget would change")
    others: Sequence[Facts] | None = planned.get("other_budgets")
    if others is None:
        return joined(title, element("p", "This plan was made by a version that did not keep it."))
    items = []
    for other in others:
        more = other["budget_bytes"] > planned["budget_bytes"]
        size = format_bytes(abs(other["budget_bytes"] - planned["budget_bytes"]))
        size += f" {'more' if more else 'less'} ({format_bytes(other['budget_bytes'])})"
        items.append(element("li", f"{size}: {_effect(other, planned['plan'], more=more)}"))
    return joined(title, element("ul", *items) if items else element("p", "Nothing was tried."))


def _frontier(planned: Facts) -> Markup | None:
    """Returns the chart of bytes against time, of the plans that nothing beats; None if fewer than two are known."""
    points: Sequence[Facts] = sorted(planned.get("frontier") or (), key=lambda point: point["step_seconds"])
    if len(points) < 2:
        return None
    budget = planned["budget_bytes"]
    unit, unit_name = unit_of(max(budget, *(point["needed_bytes"] for point in points)), BYTES)
    size, size_name = unit_of(points[-1]["step_seconds"], STEP_TIMES)
    chosen = [point for point in points if point["chosen"]]
    curves = [("plans that no other beats", points), ("the chosen plan", chosen)]
    believed = sum(not point["compiled"] for point in points)
    return Chart(
        title="Bytes against time",
        caption="What another GiB would gain, and what one less would cost: no plan is both smaller and faster than one"
        f" of these. {believed:,} of {len(points):,} were not compiled; their figures are estimates.",
        x_label=f"time of a step, {size_name}",
        y_label=f"smallest budget, {unit_name}",
        lines=[
            Line(
                name=name,
                xs=[point["step_seconds"] / size for point in of],
                ys=[point["needed_bytes"] / unit for point in of],
                marked=True,
            )
            for name, of in curves
            if of
        ],
        levels=[(f"budget: {format_bytes(budget)}", budget / unit)],
        from_zero=True,
    ).figure()


OUTSIDE_THE_STEP = ("async_save", "prefetch", "pinned")
"""Fields of a plan that do not change its step."""


def _effect(other: Facts, plan: Facts, *, more: bool) -> str:
    """Returns the difference between the plan for another budget and the chosen one."""
    changed = other["plan"]
    if changed is None:
        return "none of the plans that were compared fits."
    if any(changed.get(name) != plan.get(name) for name in {*changed, *plan} - {*OUTSIDE_THE_STEP}):
        ratio = other["step_ratio"]
        share = abs(1 / ratio - 1) if ratio < 1 else ratio - 1
        pace = f"{share:.0%} {'faster' if ratio < 1 else 'slower'}" if round(share, 2) else "as fast"
        peak = format_bytes(other["predicted_peak_bytes"])
        return f"{plan_words(Plan.from_dict(changed))}, {pace} (estimated), with a peak of {peak}."
    differences = []
    if changed["async_save"] != plan["async_save"]:
        differences.append("saves beside training" if changed["async_save"] else "training waits for saves")
    if changed["prefetch"] != plan["prefetch"]:
        differences.append(f"{changed['prefetch']} batches made ready")
    if differences:
        return f"the same step; {' and '.join(differences)}."
    return "the same plan: more memory gains nothing." if more else "the same plan."


def _buffers(planned: Facts) -> Markup | None:
    """Returns a folded table of the largest temporaries, with their lines of source."""
    buffers: Sequence[Facts] = planned.get("largest_buffers") or ()
    if not buffers:
        return None
    rows = [
        (format_bytes(buffer["bytes"]), *(shortened(buffer[name], most=120) for name in ("shape", "what", "place")))
        for buffer in buffers[:12]
    ]
    title, header = "The largest temporaries of a step", ("bytes", "shape", "operation", "place in the source")
    temporaries = table(rows, header=header, names=False, words=(1, 2, 3))
    return element("details", element("summary", title), scrolling(temporaries, name=title))


def used_of(peak: float | None, budget: int | None) -> str:
    """Returns `1.5 GiB of 2.0 GiB (75.0 %)`, or that it is unknown."""
    if peak is None or not budget:
        return UNKNOWN
    return f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak, budget)})"
