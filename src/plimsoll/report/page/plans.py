"""Sections of an HTML page about a plan, and the page of a plan without a training run."""

from __future__ import annotations

from plimsoll.planned import Planned
from plimsoll.report.layout import Table, format_used, known
from plimsoll.report.page.section import Page, Section
from plimsoll.report.picture import frontier_chart, waterfall
from plimsoll.report.tables import (
    buffers_table,
    chosen_rows,
    expected_rows,
    memory_tables,
    rate_words,
    reason_rows,
    runner_ups,
)
from plimsoll.units import format_count, format_seconds


def plan_page(planned: Planned) -> Page:
    """Returns the HTML page of a plan without a training run."""
    used = format_used(planned.peak_bytes, planned.ledger.budget_bytes)
    return Page(
        title=f"{planned.recipe} on {planned.plan.chip}",
        verdict=f"A plan that was never run: it expects a peak of {used}.",
        is_alarming=not planned.fits,
        facts={
            "peak, predicted": used,
            "bytes": planned.ledger.source,
            "a step, predicted": known(planned.step_seconds, format_seconds),
            "throughput, predicted": rate_words(planned),
            "parameters": format_count(planned.parameters),
            "devices": f"{planned.devices:,}",
        },
        sections=[bytes_section(planned), plan_section(planned)],
    )


def bytes_section(planned: Planned) -> Section:
    """Returns the section about a plan's predicted bytes, by component of memory and by phase of training."""
    return Section(title="The line", charts=[waterfall(planned)], tables=memory_tables(planned))


def plan_section(planned: Planned) -> Section:
    """Returns the section about a plan: memory-saving options, reason for the choice, other plans, largest arrays."""
    rows = [*chosen_rows(planned), *expected_rows(planned)]
    return Section(
        title="The plan",
        sentences=[f"{name.capitalize()}: {text}." for name, text in reason_rows(planned)],
        charts=[frontier_chart(planned)] if len(planned.frontier) > 1 else [],
        tables=[Table(title="Chosen", rows=rows), runner_ups(planned)],
        folded=[buffers_table(planned)],
    )
