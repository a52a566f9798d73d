"""Text that `plimsoll inspect` prints for an HDF5 file and for a folder of packed text."""

import math
from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import UNKNOWN, all_labelled, columns, format_share, known, labelled
from plimsoll.units import format_bytes

SMALL = 64
"""Largest number of values of a dataset that is only counted if there are larger ones."""


def hdf5_table(file: Mapping[str, Any]) -> str:
    """Returns the description of an HDF5 file, as `data.hdf5.survey.describe` gives it, as text."""
    written, rows = file["rows_written"], file["rows"]
    size = f"{rows:,} rows" if written >= rows else f"{written:,} of {rows:,} rows: still being written"
    lines = [f"{file['path']}: {size}, {format_bytes(file['bytes'])} on disk", ""]
    shown = [dataset for dataset in file["datasets"] if math.prod(dataset["shape"]) > SMALL] or file["datasets"]
    if shown:
        header = ("dataset", "shape", "type", "chunk", "packed", "on disk", "mean", "std", "largest", "not finite")
        lines += columns([header, *map(_dataset, shown)], align="lllrlrrrrr")
    else:
        lines.append("  no datasets: there is nothing to train on")
    if small := len(file["datasets"]) - len(shown):
        lines.append(f"  and {small} small datasets, of {SMALL} values or fewer (--json has them)")
    if file["families"]:
        table = [("family", "rows sampled", "inputs", "norm of the last state", "control, rms", "not finite")]
        for family in file["families"]:
            numbers = (f"{family['sampled_rows']:,}", f"{family['inputs']:.0f}")
            norms = (known(family["mean_norm"], ".4g"), known(family["control_rms"], ".4g"))
            table.append((family["name"], *numbers, *norms, str(family["rows_not_finite"])))
        lines += ["", *columns(table, align="lrrrrr")]
    if file["attributes"]:
        attributes = [(name, str(value)) for name, value in file["attributes"].items()]
        lines += ["", *columns([("attribute", ""), *attributes], align="ll")]
    if "shuffle" in file:
        shuffle = file["shuffle"]
        verdict = "well mixed" if shuffle["well_mixed"] else "poorly mixed, a larger --mix-chunks mixes more"
        words = (
            f"{verdict}: rank correlation of place and turn {shuffle['rank_correlation']:+.4f},"
            f" {shuffle['chunks_per_batch']:.1f} chunks in a batch, over {shuffle['batches']:,} batches"
        )
        lines += ["", *labelled("shuffle", words)]
    lines += [f"warning: {warning}" for warning in file["warnings"]]
    return "\n".join(lines)


def _dataset(dataset: Mapping[str, Any]) -> tuple[str, ...]:
    sampled = "sampled_rows" in dataset
    return (
        dataset["name"],
        " x ".join(f"{size:,}" for size in dataset["shape"]) or "one value",
        dataset["dtype"],
        f"{dataset['chunks'][0]:,} rows" if dataset["chunks"] else UNKNOWN,
        dataset["compression"] or UNKNOWN,
        format_bytes(dataset["stored_bytes"]),
        *(known(dataset[name] if sampled else None, ".4g") for name in ("mean", "std", "largest")),
        f"{dataset['rows_read_not_finite']:,} of {dataset['rows_read']:,}" if sampled else UNKNOWN,
    )


def packed_table(folder: Mapping[str, Any]) -> str:
    """Returns the description of a packed folder, as `data.packed.packed.describe_packed` gives it, as text."""
    documents, held_out = folder["document_tokens"], folder["validation_tokens"]
    share = format_share(held_out, folder["tokens"] + held_out)
    rows = [
        ("made of", folder["source"]),
        ("to train on", f"{folder['tokens']:,} tokens of {folder['documents']:,} documents"),
        (
            "for validation",
            f"{held_out:,} tokens ({share}) of {known(folder['validation_documents'], ',')} documents",
        ),
        (
            "a document",
            f"{documents['mean']:,.0f} tokens on average, {documents['shortest']:,} at least,"
            f" {documents['longest']:,} at most",
        ),
        (
            "vocabulary",
            f"{folder['vocab_size']:,} ids, kept as {folder['dtype']}; end-of-text is {folder['end_of_text']:,};"
            f" {known(folder['characters_per_token'], '.2f')} characters a token",
        ),
        (
            "looked at",
            f"{folder['sampled_tokens']:,} tokens from all over the files: all inside the vocabulary; to train on,"
            f" {folder['sampled_different_ids']:,} different ones, up to {folder['sampled_largest_id']:,}",
        ),
        *(("begins", repr(text)) for text in folder["samples"]),
    ]
    title = f"{folder['path']}: packed text, {format_bytes(folder['bytes'])} on disk"
    return "\n".join([title, "", *all_labelled(rows)])
