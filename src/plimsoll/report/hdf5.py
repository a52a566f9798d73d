"""What `plimsoll inspect` prints of an HDF5 file. Pure: a description in, text out."""

import math
from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns, labelled
from plimsoll.units import format_bytes

SMALL = 64
"""Values of a dataset that is counted, not shown, beside larger ones."""


def hdf5_table(found: Mapping[str, Any]) -> str:
    written, rows = found["rows_written"], found["rows"]
    there = f"{rows:,} rows" if written >= rows else f"{written:,} of {rows:,} rows: still being written"
    lines = [f"{found['path']}: {there}, {format_bytes(found['bytes'])} on disk", ""]
    header = ("dataset", "shape", "type", "chunk", "packed", "on disk", "mean", "std", "largest", "not finite")
    large = [one for one in found["datasets"] if math.prod(one["shape"]) > SMALL]
    shown = large or found["datasets"]
    lines += columns([header, *map(_dataset, shown)], align="lllrlrrrrr") if shown else []
    if beside := len(found["datasets"]) - len(shown):
        lines.append(f"  and {beside} small datasets, of {SMALL} values or fewer (--json has them)")
    if not found["datasets"]:
        lines.append("  no datasets: there is nothing to train on")
    if found["families"]:
        header = ("family", "rows sampled", "inputs", "norm of the last state", "control, rms", "not finite")
        lines += ["", *columns([header, *map(_family, found["families"])], align="lrrrrr")]
    if found["attributes"]:
        told = [(name, str(value)) for name, value in found["attributes"].items()]
        lines += ["", *columns([("attribute", ""), *told], align="ll")]
    if "shuffle" in found:
        mixed = found["shuffle"]
        verdict = "well mixed" if mixed["well_mixed"] else "poorly mixed, a larger --mix-chunks mixes more"
        words = (
            f"{verdict}: rank correlation of place and turn {mixed['rank_correlation']:+.4f},"
            f" {mixed['chunks_per_batch']:.1f} chunks in a batch, over {mixed['batches']:,} batches"
        )
        lines += ["", *labelled("shuffle", words)]
    lines += [f"warning: {warning}" for warning in found["warnings"]]
    return "\n".join(lines)


def _dataset(one: Mapping[str, Any]) -> tuple[str, ...]:
    chunk = f"{one['chunks'][0]:,} rows" if one["chunks"] else "-"
    sampled = "sampled_rows" in one
    return (
        one["name"],
        " x ".join(f"{size:,}" for size in one["shape"]) or "one value",
        one["dtype"],
        chunk,
        one["compression"] or "-",
        format_bytes(one["stored_bytes"]),
        *(_number(one[name]) if sampled else "-" for name in ("mean", "std", "largest")),
        f"{one['rows_read_not_finite']:,} of {one['rows_read']:,}" if sampled else "-",
    )


def _family(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["name"],
        f"{one['sampled_rows']:,}",
        f"{one['inputs']:.0f}",
        _number(one["mean_norm"]),
        _number(one["control_rms"]),
        str(one["rows_not_finite"]),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
