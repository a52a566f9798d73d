"""The parts of a page that a plan fills: where the bytes go, what was chosen and why, what another budget would buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planned import Plan
from plimsoll.report.layout import (
    UNKNOWN,
    format_difference_share,
    format_known_bytes,
    format_mib_difference,
    format_rate,
    format_share,
)
from plimsoll.report.page.markup import Markup, element, joined, shortened
from plimsoll.report.tables import lever_rows, plan_words
from plimsoll.units import format_bytes, format_count, format_seconds

Facts = Mapping[str, Any]

BAR_WIDTH = 100


def plan_of(planned: Facts) -> Plan:
    return Plan.from_dict(planned["plan"])


def line_picture(planned: Facts) -> Markup:
    """The predicted peak under the line, to scale."""
    peak, budget = planned["predicted_peak_bytes"], planned["budget_bytes"]
    to_scale = 460 / (1.06 * max(peak, budget, 1))
    line, end = round(10 + budget * to_scale, 1), round(peak * to_scale, 1)
    words = f"predicted peak {format_bytes(peak)}, the line {format_bytes(budget)}"
    return element(
        "svg",
        element("rect", x=10, y=24, width=round(budget * to_scale, 1), height=26, class_="bar room"),
        element("rect", x=10, y=24, width=end, height=26, class_="bar"),
        element("path", d=f"M{line} 16V58", class_="level line"),
        element("text", f"the line: {format_bytes(budget)}", x=line - 4, y=14, text_anchor="end", class_="on line"),
        element("text", f"predicted peak: {format_bytes(peak)}", x=10, y=70),
        viewBox="0 0 480 78",
        width="100%",
        role="img",
        aria_label=f"A bar to scale: {words}.",
        style="max-width: 640px",
    )


def where_the_bytes_go(planned: Facts, ledger: Facts | None) -> Markup:
    """Component by component, predicted and, where the run has a ledger, measured."""
    both = ledger["components"] if ledger else {name: {"predicted": of} for name, of in planned["components"].items()}
    rows = sorted(both.items(), key=lambda item: -(item[1].get("predicted") or 0))
    peak = planned["predicted_peak_bytes"] if ledger is None else ledger["predicted"]["peak_bytes"]
    measured = None if ledger is None else ledger["measured"]["peak_bytes"]
    largest = max((part.get(which) or 0 for _, part in rows for which in ("predicted", "measured")), default=1) or 1
    body = [_component(name, part.get("predicted"), part.get("measured"), largest, ledger) for name, part in rows]
    body.append(_component("peak", peak, measured, None, ledger))
    titles = ["component", "predicted", *(["measured", "difference"] if ledger else []), ""]
    head = element("tr", *(element("th", title, scope="col") if title else element("td") for title in titles))
    seen = "The outline is what was predicted, the bar what was measured." if ledger else "All of it is predicted."
    phase, source = planned.get("phase", UNKNOWN), planned.get("source", UNKNOWN)
    caption = element("caption", f"Bytes at the predicted peak, in the phase {phase} ({source}). {seen}")
    table = element("table", caption, element("thead", head), element("tbody", *body))
    return joined(_scrolling(table, "Where the bytes go"), _phases(planned, ledger))


def _component(name: str, predicted: int | None, measured: int | None, largest: int | None, ledger: Any) -> Markup:
    cells = [element("th", shortened(name, most=60), scope="row"), element("td", format_known_bytes(predicted))]
    if ledger:
        cells += [
            element("td", format_known_bytes(measured)),
            element("td", format_difference_share(measured, predicted)),
        ]
    cells.append(element("td", _bar(predicted, measured, largest, bool(ledger)) if largest else None))
    return element("tr", *cells, class_=None if largest else "sum")


def _bar(predicted: int | None, measured: int | None, largest: int, has_ledger: bool) -> Markup:
    """The numbers stand beside it, so it is hidden from those who hear the page."""
    filled = measured if has_ledger else predicted
    parts = []
    if filled:
        parts.append(element("rect", x=0, y=4, width=_width(filled, largest), height=10, class_="bar"))
    if predicted and has_ledger:
        parts.append(element("rect", x=0.7, y=1.5, width=_width(predicted, largest), height=15, class_="bar predicted"))
    return element(
        "svg", *parts, class_="bars", viewBox=f"0 0 {BAR_WIDTH + 2} 18", preserveAspectRatio="none", aria_hidden="true"
    )


def _width(size: int, largest: int) -> float:
    return round(max(0.4, BAR_WIDTH * size / largest), 1)


def _phases(planned: Facts, ledger: Facts | None) -> Markup | None:
    before = planned.get("phases") or {}
    after = ((ledger or {}).get("measured") or {}).get("phases") or {}
    if not before:
        return None
    titles = ["phase", "predicted peak", *(["measured"] if ledger else [])]
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    rows = [
        element(
            "tr",
            element("th", shortened(name, most=60), scope="row"),
            element("td", format_known_bytes(before.get(name))),
            element("td", format_known_bytes(after.get(name))) if ledger else None,
        )
        for name in dict.fromkeys([*before, *after])
    ]
    note = "A phase that stayed below an earlier peak cannot be measured." if ledger else None
    table = element("table", element("thead", head), element("tbody", *rows))
    table = _scrolling(table, "Phases of the run")
    return element("details", element("summary", "Phase by phase"), table, element("p", note, class_="quiet"))


def the_plan(planned: Facts) -> Markup:
    levers = element("dl", *(_pair(name, said) for name, said in _levers(planned)), class_="levers")
    return joined(
        element("p", f"Chosen because it is {planned['reason']}.") if planned.get("reason") else None,
        element(
            "div",
            levers,
            element("div", _alternatives(planned), _other_budgets(planned), class_="beside"),
            class_="pair wide",
        ),
        _failures(planned),
        _buffers(planned),
    )


def _levers(planned: Facts) -> list[tuple[str, str]]:
    rows = [("parameters", format_count(planned["parameters"])), *lever_rows(plan_of(planned)).items()]
    devices, seconds = planned.get("devices", 1), planned.get("step_seconds")
    rows.append(("devices", f"{devices:,}; all bytes are of one of them" if devices > 1 else "1"))
    rows.append(("pinned", ", ".join(planned["plan"].get("pinned") or ()) or "nothing"))
    if seconds:
        measured = planned.get("step_seconds_source") == "measured"
        how = "timed on this machine before the run" if measured else "by the chip's rates, not timed"
        rows.append(("a step takes", f"{format_seconds(seconds)}, {how}{_rates(planned, seconds)}"))
    if host := planned.get("host"):
        peak, limit = host["predicted_peak_bytes"], host.get("budget_bytes")
        rows.append(("each host", f"{used_of(peak, limit)}" if limit else f"{format_bytes(peak)}, no limit was given"))
    if disk := planned.get("disk"):
        rows.append(("disk", f"{format_bytes(disk['bytes'])} for {disk['kept_at_once']} checkpoints at once"))
    if band := planned.get("estimate_band"):
        lowest, highest = (format_bytes(band[f"{end}_peak_bytes"]) for end in ("lowest", "highest"))
        rows.append(("estimated", f"no compiler was asked; its peak may lie between {lowest} and {highest}"))
    if (band := planned.get("error_band")) and band.get("sessions"):
        ends = f"{format_mib_difference(band['lowest_bytes'], 0)} to {format_mib_difference(band['highest_bytes'], 0)}"
        said = f"{ends} over {band['sessions']} sessions of this kind (measured minus predicted)"
        rows.append(("earlier predictions", said))
    return rows


def _rates(planned: Facts, seconds: float) -> str:
    tokens, examples = planned.get("tokens_per_step"), planned.get("examples_per_step")
    said = [format_rate(tokens / seconds, "tokens")] if tokens else []
    said += [format_rate(examples / seconds, "examples")] if examples else []
    return f": {', '.join(said)}" if said else ""


def _pair(name: str, said: str) -> Markup:
    return joined(element("dt", name), element("dd", shortened(said)))


def _alternatives(planned: Facts) -> Markup:
    others: Sequence[Facts] = planned.get("alternatives") or ()
    if not others:
        return element("p", "No other plan that was looked at fits the budget: there is no runner-up.")
    head = element(
        "tr",
        element("th", "plan", scope="col", class_="words"),
        element("th", "peak", scope="col"),
        element("th", "a step", scope="col"),
        element("th", "why not", scope="col", class_="words"),
    )
    rows = [
        element(
            "tr",
            element("td", plan_words(Plan.from_dict(other["plan"])), class_="words"),
            element("td", format_known_bytes(other.get("predicted_peak_bytes"))),
            element("td", format_seconds(other["step_seconds"]) if other.get("step_seconds") else UNKNOWN),
            element("td", shortened(other.get("reason", "")), class_="words"),
        )
        for other in others
    ]
    caption = element("caption", "The runner-up, and what came after it")
    table = element("table", caption, element("thead", head), element("tbody", *rows))
    return _scrolling(table, "Plans that were not chosen")


def _other_budgets(planned: Facts) -> Markup:
    title = element("h3", "What another budget would buy")
    others: Sequence[Facts] | None = planned.get("other_budgets")
    if others is None:
        return joined(title, element("p", "This plan was made by a version that did not keep it."))
    said = [element("li", _bought(planned, other)) for other in others]
    return joined(title, element("ul", *said) if said else element("p", "Nothing was tried."))


def _bought(planned: Facts, other: Facts) -> str:
    """One sentence: it is about the plans that the search had looked at, and about times by the rates."""
    budget, change = other["budget_bytes"], other["budget_bytes"] - planned["budget_bytes"]
    with_it = f"{format_bytes(abs(change))} {'more' if change > 0 else 'less'} ({format_bytes(budget)}): "
    if other["plan"] is None:
        return with_it + "none of the plans that were looked at fits."
    if _same_step(other["plan"], planned["plan"]):
        return with_it + _differences(other["plan"], planned["plan"], more=change > 0)
    ratio = other["step_ratio"]
    share = abs(1 / ratio - 1) if ratio < 1 else ratio - 1
    pace = f"{share:.0%} {'faster' if ratio < 1 else 'slower'}" if round(share, 2) else "as fast"
    peak = format_bytes(other["predicted_peak_bytes"])
    return f"{with_it}{plan_words(Plan.from_dict(other['plan']))}, {pace} by the rates, with a peak of {peak}."


BESIDE_THE_STEP = ("async_save", "prefetch", "pinned")


def _same_step(one: Facts, other: Facts) -> bool:
    return all(one.get(name) == other.get(name) for name in {*one, *other} - {*BESIDE_THE_STEP})


def _differences(there: Facts, here: Facts, *, more: bool) -> str:
    """Of two plans with the same step."""
    said = []
    if there["async_save"] != here["async_save"]:
        said.append("saves beside training" if there["async_save"] else "training waits for saves")
    if there["prefetch"] != here["prefetch"]:
        said.append(f"{there['prefetch']} batches made ready")
    if said:
        return f"the same step; {' and '.join(said)}."
    return "buys nothing, the same plan." if more else "the same plan."


def _failures(planned: Facts) -> Markup | None:
    left_out = planned.get("left_out") or ()
    if not left_out:
        return None
    items = [element("li", shortened(text)) for text in left_out[:8]]
    more = f" (the first 8 of {len(left_out)})" if len(left_out) > 8 else ""
    return joined(element("h3", f"What does not compile here{more}"), element("ul", *items))


def _buffers(planned: Facts) -> Markup | None:
    buffers: Sequence[Facts] = planned.get("largest_buffers") or ()
    if not buffers:
        return None
    head = element(
        "tr",
        element("th", "bytes", scope="col"),
        *(element("th", title, scope="col", class_="words") for title in ("shape", "operation", "place in the source")),
    )
    rows = [
        element(
            "tr",
            element("td", format_bytes(buffer["bytes"])),
            *(element("td", shortened(buffer[name], most=120), class_="words") for name in ("shape", "what", "place")),
        )
        for buffer in buffers[:12]
    ]
    table = element("table", element("thead", head), element("tbody", *rows))
    summary = element("summary", "The largest temporaries of a step")
    return element("details", summary, _scrolling(table, "The largest temporaries of a step"))


def _scrolling(table: Markup, name: str) -> Markup:
    """A wide table scrolls by itself, with the keyboard too, so that the page never does."""
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=name)


def used_of(peak: float | None, budget: int | None) -> str:
    if peak is None or not budget:
        return UNKNOWN
    return f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak, budget)})"
