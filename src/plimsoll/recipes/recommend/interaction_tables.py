"""What is printed of a set of interactions, when it was made and by `plimsoll inspect`. Pure: a description in, text
out."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns, labelled
from plimsoll.units import format_bytes, format_seconds

REMARKS = {
    "rated_lower": "rated lower than asked for, and left out",
    "out_of_order": "stood after a later one of their user, and were sorted",
    "same_time": "have the time of the one before them, and keep the order of the file",
    "repeats": "were of an item that the user had taken before, and left out",
    "interactions_dropped": "left out with the users and items that have too few",
    "users_dropped": "users with too few",
    "items_dropped": "items with too few",
    "users_only_trained_on": "users with fewer than three, who are trained on and not evaluated",
}
"""Words for the counts of `prepare`, which are printed if they are not 0."""


def prepared_text(found: Mapping[str, Any]) -> str:
    counts = found["counts"]
    time = f"{format_seconds(found['seconds'])} ({found['examples_per_second']:,.0f} interactions/s)"
    lines = [
        f"{found['path']}: {found['examples']:,} interactions of {found['users']:,} users with {found['items']:,}"
        f" items, {format_bytes(found['bytes'])}, in {time}",
        f"  read as --format {found['form']}: {counts['interactions_read']:,} interactions of"
        f" {counts['users_read']:,} users with {counts['items_read']:,} items"
        + ("" if found["times"] else ", in the order of time as they stand"),
        *_remarks(counts),
        f"  clusters: {found['clusters']:,} by {found['clustering']}, the largest of {found['largest_cluster']:,} items"
        + _split(found["clusters"], found["clusters_asked"]),
    ]
    if found["titles_file"] is not None:
        lines.append(f"  titles: of {found['titles']:,} items, from {found['titles_file']}")
    return "\n".join(lines)


def _split(clusters: int, asked: int) -> str:
    if clusters == asked:
        return ""
    return f" ({asked:,} were asked for; too large ones were split, and none is empty)"


def _remarks(counts: Mapping[str, int]) -> list[str]:
    return [f"  {words}: {counts[name]:,}" for name, words in REMARKS.items() if counts.get(name)]


def interactions_table(found: Mapping[str, Any]) -> str:
    held = f"{found['evaluated_users']:,} items for validation and as many for testing"
    begin = f"{found['embedding_size']} numbers each, by {found['embeddings']}" if found["embedding_size"] else "none"
    most = ", ".join(f"{one['name']} ({one['times']:,} times)" for one in found["most_taken"])
    told = [
        ("interactions", f"{found['interactions']:,}: {found['training_interactions']:,} to train on, {held}"),
        ("users", f"{found['users']:,}, each with {_spread(found['sequence'])} items"),
        ("items", f"{found['items']:,}, each taken {_spread(found['item'])} times; {found['titles']:,} have a title"),
        ("most taken", most),
        (
            "clusters",
            f"{found['clusters']:,} by {found['clustering']}, each with {_spread(found['cluster'])} items",
        ),
        ("embeddings", begin),
    ]
    lines = [f"{found['path']}: interactions, {format_bytes(found['bytes'])} on disk", ""]
    lines += [line for label, text in told for line in labelled(label, text)]
    remarks = _remarks(found["counts"])
    lines += ["", "  of the file it was made from", *(f"  {line}" for line in remarks)] if remarks else []
    if found["made_with"] is not None:
        options = [
            (f"  --{name.replace('_', '-')}", str(value))
            for name, value in found["made_with"].items()
            if value is not None
        ]
        lines += ["", *labelled("made with", ""), *columns(options, align="ll")]
    return "\n".join(lines)


def _spread(found: Mapping[str, float]) -> str:
    return f"{found['least']:,} to {found['most']:,} (mean {found['mean']:,.1f})"
