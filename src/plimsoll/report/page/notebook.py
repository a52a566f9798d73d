"""HTML for a notebook: a plan as a picture and a table, and a run's progress as a bar.

It has its own colours, which are readable in every theme of the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.report.page.markup import Markup, element, joined, shortened
from plimsoll.report.page.palette import DARK, LIGHT, variables
from plimsoll.report.page.plan_sections import line_picture, the_plan, where_the_bytes_go
from plimsoll.units import format_bytes

STYLE = f"""
.plimsoll {{ {variables(LIGHT)} background: var(--page); color: var(--ink); padding: 10px 14px; max-width: 900px; }}
@media (prefers-color-scheme: dark) {{ .plimsoll {{ {variables(DARK)} }} }}
.plimsoll h3 {{ font-size: 1.05em; margin: 12px 0 4px; }}
.plimsoll p, .plimsoll li, .plimsoll dd, .plimsoll pre {{ color: var(--ink); }}
.plimsoll .quiet, .plimsoll caption, .plimsoll summary, .plimsoll dt {{ color: var(--quiet); text-align: left; }}
.plimsoll table {{ border-collapse: collapse; color: var(--ink); font-variant-numeric: tabular-nums; }}
.plimsoll th, .plimsoll td {{ text-align: right; padding: 2px 12px 2px 0; font-weight: 400; background: none; }}
.plimsoll th:first-child, .plimsoll .words {{ text-align: left; }} .plimsoll .sum > * {{ font-weight: 600; }}
.plimsoll dl.levers {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 6px 0; }}
.plimsoll dd {{ margin: 0; }} .plimsoll .bars {{ width: 180px; height: 16px; }}
.plimsoll .scroll {{ overflow-x: auto; }}
.plimsoll .bar {{ fill: var(--one); }} .plimsoll .bar.room {{ fill: var(--rule); }}
.plimsoll .level.line {{ stroke: var(--line); stroke-width: 2.2; }} .plimsoll svg text {{ fill: var(--ink); }}
.plimsoll svg text {{ font: 12px system-ui, sans-serif; }} .plimsoll svg text.on.line {{ fill: var(--line); }}
.plimsoll progress {{ width: 100%; accent-color: var(--one); }}
.plimsoll pre {{ font-size: .85em; background: var(--panel); padding: 8px; overflow-x: auto; }}
"""
STYLE_ELEMENT = element("style", Markup(STYLE))


def plan_html(planned: Mapping[str, Any]) -> str:
    """Returns a plan, given as `Planned.to_dict()`, as HTML."""
    peak, budget = planned["predicted_peak_bytes"], planned["budget_bytes"]
    title = (
        f"{planned['recipe']} on {planned['plan']['chip']}: {format_bytes(peak)} of {format_bytes(budget)}, predicted"
    )
    return element(
        "div",
        STYLE_ELEMENT,
        element("h3", title),
        line_picture(planned),
        where_the_bytes_go(planned, {}),
        element("h3", "The plan"),
        the_plan(planned),
        class_="plimsoll",
    )


def run_html(words: Mapping[str, str], planned: Mapping[str, Any], ledger: Mapping[str, Any]) -> str:
    """Returns a run as HTML: how far it came, and a table of its bytes.

    Args:
        words: Facts by their names.
        planned: Content of its plan.json; empty if it has none.
        ledger: Content of its ledger.json; empty if it has none.
    """
    facts = [joined(element("dt", name), element("dd", shortened(text))) for name, text in words.items()]
    table = where_the_bytes_go(planned, ledger) if planned else None
    return element("div", STYLE_ELEMENT, element("dl", *facts, class_="levers"), table, class_="plimsoll")


def bar_html(step: int, total: int, facts: str, messages: Sequence[str], *, ended: bool = False) -> str:
    """Returns the bar of a run with its last message below; once it has `ended`, all messages can be unfolded."""
    bar = element("progress", value=step, max=max(total, 1), aria_label="steps of the run")
    texts = [shortened(message, most=4000) for message in messages]
    unfolded = element("details", element("summary", "all that was said"), element("pre", "\n".join(texts)))
    return element(
        "div",
        STYLE_ELEMENT,
        bar,
        element("p", f"step {step:,} of {total:,}  {facts}"),
        element("pre", texts[-1]) if texts else None,
        unfolded if ended else None,
        class_="plimsoll",
    )
