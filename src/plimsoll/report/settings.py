"""The guide's table of settings by hardware as plain text: a machine a row, with the plan that was found for it."""

from collections.abc import Iterable

from plimsoll.planned import Planned
from plimsoll.report.layout import UNKNOWN, columns, format_known_bytes
from plimsoll.units import format_bytes, format_count, format_seconds

HEADER = ("machine", "budget", "micro-batch", "remat", "loss chunk", "precision", "predicted peak", "step")


def settings_table(rows: Iterable[tuple[str, int | None, Planned | None, str]]) -> str:
    """What `plimsoll plan RECIPE --settings` prints. A row: machine, budget in bytes, plan or None, why none."""
    rows = list(rows)
    table = columns([HEADER, *(_row(*row[:3]) for row in rows)], align="lrllrlrr", indent=0)
    plans = [planned for _, _, planned, _ in rows if planned is not None]
    if plans:
        first = plans[0]
        size, batch = format_count(first.parameters), first.plan.effective_batch
        table.insert(0, f"{first.recipe}: {size} parameters, effective batch {batch} on every machine\n")
    notes = [f"{machine}: {why_not or _estimated(planned)}" for machine, _, planned, why_not in rows if _noted(planned)]
    return "\n".join([*table, *([""] if notes else []), *notes])


def _noted(planned: Planned | None) -> bool:
    return planned is None or planned.estimate_band is not None


def _estimated(planned: Planned | None) -> str:
    assert planned is not None
    assert planned.estimate_band is not None
    lowest, highest = (format_bytes(planned.estimate_band[f"{end}_peak_bytes"]) for end in ("lowest", "highest"))
    return f"no compiler was asked; a peak from {lowest} to {highest}, by plans that were held against one"


def _row(machine: str, budget: int | None, planned: Planned | None) -> tuple[str, ...]:
    if planned is None:
        return (machine, format_known_bytes(budget), *([UNKNOWN] * 6))
    plan = planned.plan
    return (
        machine,
        format_known_bytes(budget),
        f"{plan.micro_batch} x {plan.accumulation}" + (f" on {planned.devices}" if planned.devices > 1 else ""),
        plan.remat,
        f"{plan.loss_chunk:,}" if plan.loss_chunk else "off",
        plan.precision,
        format_bytes(planned.ledger.predicted_peak_bytes),
        UNKNOWN if planned.step_seconds is None else format_seconds(planned.step_seconds),
    )
