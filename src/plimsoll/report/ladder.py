"""A recipe's memory table: every rung with its bytes, its time and its loss, as plain text and as a picture.

Both take what `plimsoll ladder --json` prints. Bars are measured peaks, made up of state, the step's temporaries and
the rest of the process; a mark shows the prediction. matplotlib is imported inside the functions that draw.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plimsoll.report.layout import UNKNOWN, Cells, all_labelled, format_rate, known, table
from plimsoll.report.picture import BAR, INK, LINE, PEAK, ROOM, bar_axes, byte_axis
from plimsoll.units import GIB, MIB, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = {
    "exact": "exact: the same mathematics in float32",
    "mixed": "mixed: other arithmetic, float32 weights and sums",
    "compressed": "compressed: weights or optimizer state in fewer bits",
}
Row = Mapping[str, Any]


def _mebibytes(size: int | None) -> str:
    """Returns the size in MiB whatever it is, so that a column can be compared by eye."""
    return UNKNOWN if size is None else f"{size / MIB:,.1f} MiB"


def _measured(row: Row) -> str:
    if row["measured_peak_bytes"] is not None:
        return _mebibytes(row["measured_peak_bytes"])
    return "not run" if row["outcome"] == "predicted" else row["outcome"]


CELLS: Cells = {
    "rung": ("l", lambda row: row["name"]),
    "predicted": ("r", lambda row: _mebibytes(row["predicted_peak_bytes"])),
    "measured": ("r", _measured),
    "state": ("r", lambda row: _mebibytes(row["state_bytes"])),
    "temporaries": ("r", lambda row: _mebibytes(row["temporary_bytes"])),
    "step": ("r", lambda row: known(row["step_seconds"], format_seconds)),
    "x first": ("r", lambda row: known(row["step_ratio"], ".2f")),
    "loss": ("r", lambda row: known(row["loss"], ".4f")),
    "drift": ("r", lambda row: known(row["loss_drift"], ".1e") if row["loss_drift"] != 0 else "0"),
}


def ladder_table(ladder: Mapping[str, Any]) -> str:
    """Returns what `plimsoll ladder` prints: a line per rung, what each adds, what is left out, how it was measured."""
    rows: Sequence[Row] = ladder["rungs"]
    header, *lines = table(rows, CELLS)
    grouped, numerics = [header], None
    for row, line in zip(rows, lines, strict=True):
        if row["numerics"] != numerics:
            grouped.append(CLASSES[numerics := row["numerics"]])
        grouped.append(line)
    text = [_title(ladder), "", *grouped, "", "each rung keeps what the one before it had, and adds"]
    text += all_labelled((row["name"], row["words"]) for row in rows)
    if ladder["left_out"]:
        text += ["left out", *all_labelled(ladder["left_out"].items())]
    return "\n".join([*text, "", *_notes(ladder)])


PREDICTED: Cells = {
    "rung": ("l", lambda row: row["name"]),
    "device": ("r", lambda row: _gibibytes(row["predicted_peak_bytes"])),
    "state": ("r", lambda row: _gibibytes(row["state_bytes"])),
    "temporaries": ("r", lambda row: _gibibytes(row["temporary_bytes"])),
    "host": ("r", lambda row: _gibibytes(row["host_bytes"])),
    "step": ("r", lambda row: known(row["step_seconds"], format_seconds)),
}


def _gibibytes(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / GIB:,.2f} GiB"


def predicted_table(ladder: Mapping[str, Any]) -> str:
    """Returns what `plimsoll ladder --chip` prints: a line per rung, what each adds, and what is left out."""
    rows: Sequence[Row] = ladder["rungs"]
    text = [f"{_title(ladder)}, on {ladder['chip']}", "", *table(rows, PREDICTED), ""]
    text += ["each rung keeps what the one before it had, and adds"]
    text += all_labelled((row["name"], row["words"]) for row in rows)
    if ladder["left_out"]:
        text += ["left out", *all_labelled(ladder["left_out"].items())]
    sources = ", ".join(sorted({row["source"] for row in rows if row["source"]}))
    notes = [("bytes", f"{sources}, nothing was run"), ("step", "estimated from the chip's rates")]
    budget = ladder["budget_bytes"]
    for row in rows:
        if row["why_not"]:
            notes.append((row["name"], f"failed: {row['why_not']}"))
        elif row["predicted_peak_bytes"] > budget:
            notes.append((row["name"], f"over the {format_bytes(budget)} that it may use"))
    return "\n".join([*text, "", *all_labelled(notes)])


def _title(ladder: Mapping[str, Any]) -> str:
    count = ladder["parameters"]
    size = "" if count is None else f"{format_count(count)} parameters, "
    return f"ladder of {ladder['recipe']}: {size}effective batch {ladder['effective_batch']}"


def _notes(ladder: Mapping[str, Any]) -> list[str]:
    """Returns how peaks, times and drift were measured, and for each rung that went over the budget by how much."""
    first, last = ladder["stops"]
    # Two sessions of one rung differ only by what else the machine did, so their ratio is noise.
    sessions = [row["session_step_seconds"] for row in ladder["rungs"]]
    noise = [max(pair) / min(pair) - 1 for pair in sessions if len(pair) > 1]
    apart = f"; here a rung's two medians lay up to {max(noise):.0%} apart" if noise else ""
    budget = ladder["budget_bytes"]
    notes = [
        (
            "peak",
            f"of the whole process, the larger of two: steps 1 to {first} with an evaluation and a save halfway and at"
            f" the end, and one that restores and goes on to step {last}",
        ),
        ("step", f"median; the sessions of all rungs were taken in turn, and on a shared machine times vary{apart}"),
        ("drift", "largest difference of a step's training loss from that of the first rung that was run, as a share"),
    ]
    for row in ladder["rungs"]:
        if row["outcome"] == "predicted":
            over = f"predicted over the {format_bytes(budget)} that it may use, so it was not run"
            notes.append((row["name"], over))
        elif row["outcome"] == "failed":
            notes.append((row["name"], f"failed: {row['why_not']}"))
        elif row["measured_peak_bytes"] > budget:
            notes.append((row["name"], f"over the {format_bytes(budget)} that it may use"))
    return all_labelled(notes)


def ladder_figure(ladder: Mapping[str, Any]) -> "Figure":
    """Returns a figure with a bar per rung, for a notebook or another format."""
    from matplotlib.figure import Figure

    rows: Sequence[Row] = ladder["rungs"]
    figure = Figure(figsize=(9, 1.8 + 0.42 * len(rows)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    sizes = [row[name] or 0 for row in rows for name in ("measured_peak_bytes", "predicted_peak_bytes")]
    unit, unit_name = byte_axis(max(sizes))
    for at, row in enumerate(rows):
        _draw_rung(axes, at, row, unit)
        text = "failed"
        if row["outcome"] == "predicted":
            text = f"{format_bytes(row['predicted_peak_bytes'])} predicted, not run"
        elif row["outcome"] == "measured":
            rate = format_rate(row[f"{ladder['rate_unit']}_per_second"], ladder["rate_unit"])
            text = f"{format_bytes(row['measured_peak_bytes'])}, {rate}, {row['numerics']}"
        end = max(row["measured_peak_bytes"] or 0, row["predicted_peak_bytes"] or 0) / unit
        axes.text(end + 0.01 * max(sizes) / unit, at, text, va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=9, color=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.6 * max(sizes) / unit)
    axes.set_title(_title(ladder), loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    bar_axes(axes, x_label=f"{unit_name} of the whole process at its peak")
    if any(row["outcome"] == "measured" for row in rows):
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _draw_rung(axes: "Axes", at: int, row: Row, unit: int) -> None:
    """Draws a measured rung as a stack of its parts, and one that is only predicted as an outline."""
    predicted, measured = row["predicted_peak_bytes"], row["measured_peak_bytes"]
    if measured is None:
        axes.barh(at, (predicted or 0) / unit, height=0.6, color="white", edgecolor=BAR, hatch="///", zorder=3)
        return

    def once(label: str) -> str:
        """Returns the label, hidden by an underscore if the legend has it already."""
        return f"_{label}" if label in axes.get_legend_handles_labels()[1] else label

    left, state, temporaries = 0, row["state_bytes"] or 0, row["temporary_bytes"] or 0
    rest = max(0, measured - state - temporaries)
    for size, colour, label in ((state, PEAK, "state"), (temporaries, BAR, "temporaries"), (rest, ROOM, "process")):
        axes.barh(at, size / unit, left=left / unit, height=0.6, color=colour, zorder=3, label=once(label))
        left += size
    if predicted is not None:
        label = once("predicted")
        axes.plot([predicted / unit] * 2, [at - 0.38, at + 0.38], color=LINE, linewidth=1.6, zorder=4, label=label)
