"""What `plimsoll inspect` prints of a packed folder. Pure: a description in, text out."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import UNKNOWN, format_share, labelled
from plimsoll.units import format_bytes


def packed_table(found: Mapping[str, Any]) -> str:
    documents, held_out = found["document_tokens"], found["validation_documents"]
    whole = found["tokens"] + found["validation_tokens"]
    ratio = found["characters_per_token"]
    told = [
        ("made of", found["source"]),
        ("to train on", f"{found['tokens']:,} tokens of {found['documents']:,} documents"),
        (
            "for validation",
            f"{found['validation_tokens']:,} tokens ({format_share(found['validation_tokens'], whole)}) of"
            f" {UNKNOWN if held_out is None else f'{held_out:,}'} documents",
        ),
        (
            "a document",
            f"{documents['mean']:,.0f} tokens on average, {documents['shortest']:,} at least,"
            f" {documents['longest']:,} at most",
        ),
        (
            "vocabulary",
            f"{found['vocab_size']:,} ids, kept as {found['dtype']}; end-of-text is {found['end_of_text']:,};"
            f" {UNKNOWN if ratio is None else f'{ratio:.2f}'} characters a token",
        ),
        (
            "looked at",
            f"{found['sampled_tokens']:,} tokens from all over the files: all inside the vocabulary; to train on,"
            f" {found['sampled_different_ids']:,} different ones, up to {found['sampled_largest_id']:,}",
        ),
        *(("begins", repr(text)) for text in found["samples"]),
    ]
    lines = [f"{found['path']}: packed text, {format_bytes(found['bytes'])} on disk", ""]
    return "\n".join(lines + [line for label, text in told for line in labelled(label, text)])
