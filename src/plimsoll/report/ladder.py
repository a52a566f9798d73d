"""A recipe's memory table: every rung with its bytes, its time and its loss, as plain text and as a picture.

Both take what `plimsoll ladder --json` prints. Bars are measured peaks, made up of state, the step's temporaries and
the rest of the process; a mark shows what had been predicted. matplotlib is imported inside the functions that draw.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.report.layout import UNKNOWN, columns, format_rate, labelled
from plimsoll.report.picture import BAR, INK, LINE, PEAK, QUIET_INK, ROOM, byte_axis, quieten, require_picture, written
from plimsoll.units import MIB, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = {
    "exact": "exact: the same mathematics in float32",
    "mixed": "mixed: other arithmetic, float32 weights and sums",
    "compressed": "compressed: weights or optimizer state in fewer bits",
}
HEADER = ("rung", "predicted", "measured", "state", "temporaries", "step", "x first", "loss", "drift")

Row = Mapping[str, Any]


def ladder_table(found: Mapping[str, Any]) -> str:
    """What `plimsoll ladder` prints: a rung a line, then what each adds, what is left out, how it was measured."""
    rows: Sequence[Row] = found["rungs"]
    header, *lines = columns([HEADER, *map(_cells, rows)], align="lrrrrrrrr")
    table, numerics = [header], None
    for row, line in zip(rows, lines, strict=True):
        if row["numerics"] != numerics:
            table.append(CLASSES[numerics := row["numerics"]])
        table.append(line)
    text = [_title(found), "", *table, "", "each rung keeps what the one before it had, and adds"]
    text += [line for row in rows for line in labelled(row["name"], row["words"])]
    if found["left_out"]:
        text += ["left out", *(line for item in found["left_out"].items() for line in labelled(*item))]
    return "\n".join([*text, "", *_notes(found)])


def _title(found: Mapping[str, Any]) -> str:
    count = found["parameters"]
    size = "" if count is None else f"{format_count(count)} parameters, "
    return f"ladder of {found['recipe']}: {size}effective batch {found['effective_batch']}"


def _cells(row: Row) -> tuple[str, ...]:
    measured = "not run" if row["outcome"] == "predicted" else row["outcome"]
    if row["measured_peak_bytes"] is not None:
        measured = _mebibytes(row["measured_peak_bytes"])
    seconds, ratio, loss, drift = (row[name] for name in ("step_seconds", "step_ratio", "loss", "loss_drift"))
    return (
        row["name"],
        _mebibytes(row["predicted_peak_bytes"]),
        measured,
        _mebibytes(row["state_bytes"]),
        _mebibytes(row["temporary_bytes"]),
        UNKNOWN if seconds is None else format_seconds(seconds),
        UNKNOWN if ratio is None else f"{ratio:.2f}",
        UNKNOWN if loss is None else f"{loss:.4f}",
        UNKNOWN if drift is None else f"{drift:.1e}" if drift else "0",
    )


def _mebibytes(size: int | None) -> str:
    """In one unit, so that a column can be read down."""
    return UNKNOWN if size is None else f"{size / MIB:,.1f} MiB"


def _notes(found: Mapping[str, Any]) -> list[str]:
    first, last = found["stops"]
    lines = labelled(
        "peak",
        f"of the whole process, the larger of two: steps 1 to {first} with an evaluation and a save halfway and at the"
        f" end, and one that restores and goes on to step {last}",
    )
    lines += labelled("step", _of_times(found["rungs"]))
    lines += labelled(
        "drift", "largest difference of a step's training loss from that of the first rung that was run, as a share"
    )
    budget = found["budget_bytes"]
    for row in found["rungs"]:
        if row["outcome"] == "predicted":
            over = f"predicted over the {format_bytes(budget)} that it may use, so it was not run"
            lines += labelled(row["name"], over)
        elif row["outcome"] == "failed":
            lines += labelled(row["name"], f"failed: {row['why_not']}")
        elif row["measured_peak_bytes"] > budget:
            lines += labelled(row["name"], f"over the {format_bytes(budget)} that it may use")
    return lines


def _of_times(rows: Sequence[Row]) -> str:
    """Two sessions of one rung differ by nothing but what else the machine did: so much is noise."""
    noise = [max(pair) / min(pair) - 1 for pair in (row["session_step_seconds"] for row in rows) if len(pair) > 1]
    apart = f"; here a rung's two medians lay up to {max(noise):.0%} apart" if noise else ""
    return f"median; the sessions of all rungs were taken in turn, and on a shared machine times vary{apart}"


def ladder_picture(found: Mapping[str, Any], path: Path | str) -> Path:
    """Draws the rungs into `path`, a .png or .svg, and returns the path."""
    path = require_picture(path)
    return written(ladder_figure(found), path)


def ladder_figure(found: Mapping[str, Any]) -> "Figure":
    """A bar a rung, for a notebook or another format."""
    from matplotlib.figure import Figure

    rows: Sequence[Row] = found["rungs"]
    figure = Figure(figsize=(9, 1.8 + 0.42 * len(rows)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    sizes = [row[name] or 0 for row in rows for name in ("measured_peak_bytes", "predicted_peak_bytes")]
    unit, unit_name = byte_axis(max(sizes))
    for place, row in enumerate(rows):
        _draw_rung(axes, place, row, unit)
        end = max(row["measured_peak_bytes"] or 0, row["predicted_peak_bytes"] or 0) / unit
        axes.text(
            end + 0.01 * max(sizes) / unit, place, _words(row, found["rate_unit"]), va="center", fontsize=9, color=INK
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=9, color=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.6 * max(sizes) / unit)
    axes.set_xlabel(f"{unit_name} of the whole process at its peak", fontsize=9, color=QUIET_INK)
    axes.set_title(_title(found), loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    quieten(axes)
    if any(row["outcome"] == "measured" for row in rows):
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _draw_rung(axes: "Axes", place: int, row: Row, unit: int) -> None:
    """Stacked where it was measured; an outline where it is predicted only."""
    predicted, measured = row["predicted_peak_bytes"], row["measured_peak_bytes"]
    if measured is None:
        axes.barh(place, (predicted or 0) / unit, height=0.6, color="white", edgecolor=BAR, hatch="///", zorder=3)
        return
    left, state, temporaries = 0, row["state_bytes"] or 0, row["temporary_bytes"] or 0
    rest = max(0, measured - state - temporaries)
    for size, colour, label in ((state, PEAK, "state"), (temporaries, BAR, "temporaries"), (rest, ROOM, "process")):
        axes.barh(place, size / unit, left=left / unit, height=0.6, color=colour, zorder=3, label=_once(axes, label))
        left += size
    if predicted is not None:
        reach, label = [place - 0.38, place + 0.38], _once(axes, "predicted")
        axes.plot([predicted / unit] * 2, reach, color=LINE, linewidth=1.6, zorder=4, label=label)


def _once(axes: "Axes", label: str) -> str:
    """Hidden from the legend where it stands there already."""
    return f"_{label}" if label in axes.get_legend_handles_labels()[1] else label


def _words(row: Row, rate_unit: str) -> str:
    if row["outcome"] == "failed":
        return "failed"
    if row["outcome"] == "predicted":
        return f"{format_bytes(row['predicted_peak_bytes'])} predicted, not run"
    rate = format_rate(row[f"{rate_unit}_per_second"], rate_unit)
    return f"{format_bytes(row['measured_peak_bytes'])}, {rate}, {row['numerics']}"
