"""A recipe's memory table: every rung with its bytes, its time and its loss, as `plimsoll ladder` prints them."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import UNKNOWN, Cells, all_labelled, known, table
from plimsoll.units import MIB, format_bytes, format_count, format_seconds


def _mebibytes(size: int | None) -> str:
    """Returns the size in MiB whatever it is, so that a column can be compared by eye."""
    return UNKNOWN if size is None else f"{size / MIB:,.1f} MiB"


PREDICTED: Cells = {
    "rung": ("l", lambda row: row["name"]),
    "numerics": ("l", lambda row: row["numerics"]),
    "predicted": ("r", lambda row: _mebibytes(row["predicted_peak_bytes"])),
    "state": ("r", lambda row: _mebibytes(row["state_bytes"])),
    "temporaries": ("r", lambda row: _mebibytes(row["temporary_bytes"])),
    "step": ("r", lambda row: known(row["step_seconds"], format_seconds)),
}
OF_THE_HOST: Cells = {"host": ("r", lambda row: _mebibytes(row["host_bytes"]))}
MEASURED: Cells = {
    "measured": ("r", lambda row: _mebibytes(row["measured_peak_bytes"])),
    "x first": ("r", lambda row: known(row["step_ratio"], ".2f")),
    "loss": ("r", lambda row: known(row["loss"], ".4f")),
    "drift": ("r", lambda row: known(row["loss_drift"], ".2g")),
}


def ladder_table(ladder: Mapping[str, Any]) -> str:
    """Returns what `plimsoll ladder` prints: a line per rung, what each adds, what is left out, how it was measured."""
    first, last = ladder["stops"]
    notes = [
        ("measured", f"peak of the whole process, in steps 1 to {first} or after a restart from there to {last}"),
        ("step", "median; the sessions of all rungs were taken in turn"),
        ("drift", "largest difference of a step's training loss from that of the first rung that was run, as a share"),
    ]
    return _text(_title(ladder), ladder, {**PREDICTED, **MEASURED}, notes)


def predicted_table(ladder: Mapping[str, Any]) -> str:
    """Returns what `plimsoll ladder --chip` prints: a line per rung, what each adds, and what is left out."""
    sources = ", ".join(sorted({row["source"] for row in ladder["rungs"] if row["source"]}))
    notes = [("bytes", f"{sources}, nothing was run"), ("step", "estimated from the chip's rates")]
    return _text(f"{_title(ladder)}, on {ladder['chip']}", ladder, {**PREDICTED, **OF_THE_HOST}, notes)


def _text(title: str, ladder: Mapping[str, Any], cells: Cells, notes: list[tuple[str, str]]) -> str:
    rows, budget = ladder["rungs"], ladder["budget_bytes"]
    lines = [title, "", *table(rows, cells).lines(), "", "each rung keeps what the one before it had, and adds"]
    lines += all_labelled((row["name"], row["words"]) for row in rows)
    if ladder["left_out"]:
        lines += ["left out", *all_labelled(ladder["left_out"].items())]
    for row in rows:
        peak = row.get("measured_peak_bytes") or row["predicted_peak_bytes"] or 0
        if row["why_not"]:
            notes.append((row["name"], f"failed: {row['why_not']}"))
        elif peak > budget:
            notes.append((row["name"], f"over the {format_bytes(budget)} that it may use"))
    return "\n".join([*lines, "", *all_labelled(notes)])


def _title(ladder: Mapping[str, Any]) -> str:
    size = known(ladder["parameters"], format_count)
    return f"ladder of {ladder['recipe']}: {size} parameters, effective batch {ladder['effective_batch']}"
