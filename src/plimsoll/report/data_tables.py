"""Output of `plimsoll inspect` about an HDF5 file, or about a folder of token ids made from text."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import UNKNOWN, Cells, all_labelled, format_share, known, table
from plimsoll.units import format_bytes

DATASETS: Cells = {
    "dataset": ("l", lambda row: row["name"]),
    "shape": ("l", lambda row: " x ".join(f"{size:,}" for size in row["shape"]) or "one value"),
    "type": ("l", lambda row: row["dtype"]),
    "chunk": ("r", lambda row: f"{row['chunks'][0]:,} rows" if row["chunks"] else UNKNOWN),
    "packed": ("l", lambda row: row["compression"] or UNKNOWN),
    "on disk": ("r", lambda row: format_bytes(row["stored_bytes"])),
    "mean": ("r", lambda row: known(row.get("mean"), ".4g")),
    "std": ("r", lambda row: known(row.get("std"), ".4g")),
    "largest": ("r", lambda row: known(row.get("largest"), ".4g")),
    "not finite": (
        "r",
        lambda row: f"{row['rows_read_not_finite']:,} of {row['rows_read']:,}" if "sampled_rows" in row else UNKNOWN,
    ),
}
FAMILIES: Cells = {
    "family": ("l", lambda row: row["name"]),
    "rows sampled": ("r", lambda row: f"{row['sampled_rows']:,}"),
    "inputs": ("r", lambda row: f"{row['inputs']:.0f}"),
    "norm of the last state": ("r", lambda row: known(row["mean_norm"], ".4g")),
    "control, rms": ("r", lambda row: known(row["control_rms"], ".4g")),
    "not finite": ("r", lambda row: str(row["rows_not_finite"])),
}


def hdf5_table(file: Mapping[str, Any]) -> str:
    """Formats the description of an HDF5 file.

    Args:
        file: Result of `data.hdf5.survey.describe`.
    """
    lines = [f"{file['path']}: {file['rows']:,} rows, {format_bytes(file['bytes'])} on disk", ""]
    lines += table(file["datasets"], DATASETS).lines()
    if file["families"]:
        lines += ["", *table(file["families"], FAMILIES).lines()]
    if file["attributes"]:
        lines += ["", *all_labelled((name, str(value)) for name, value in file["attributes"].items())]
    lines += [f"warning: {warning}" for warning in file["warnings"]]
    return "\n".join(lines)


def packed_table(folder: Mapping[str, Any]) -> str:
    """Formats the description of a folder of token ids made from text.

    Args:
        folder: Result of `data.packed.packed.describe_packed`.
    """
    held_out = folder["validation_tokens"]
    share = format_share(held_out, folder["tokens"] + held_out)
    rows = [
        ("made of", folder["source"]),
        ("to train on", f"{folder['tokens']:,} tokens of {folder['documents']:,} documents"),
        (
            "for validation",
            f"{held_out:,} tokens ({share}) of {folder['validation_documents']:,} documents",
        ),
        ("a document", f"{folder['document_tokens']:,.0f} tokens on average"),
        (
            "vocabulary",
            f"{folder['vocab_size']:,} ids, kept as {folder['dtype']}; end-of-text is {folder['end_of_text']:,};"
            f" {folder['characters_per_token']:.2f} characters a token",
        ),
        ("begins", repr(folder["sample"])),
    ]
    title = f"{folder['path']}: packed text, {format_bytes(folder['bytes'])} on disk"
    return "\n".join([title, "", *all_labelled(rows)])
