"""What `plimsoll prepare` and `plimsoll inspect` say of a set of interactions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.report.layout import all_labelled, columns, labelled
from plimsoll.units import format_bytes, format_seconds

SHOWN = 5
"""Number of the most popular items that are shown."""
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


def prepared_text(answer: Mapping[str, Any]) -> str:
    counts = answer["counts"]
    time = f"{format_seconds(answer['seconds'])} ({answer['examples_per_second']:,.0f} interactions/s)"
    split = ""
    if answer["clusters"] != answer["clusters_asked"]:
        split = f" ({answer['clusters_asked']:,} were asked for; too large ones were split, and none is empty)"
    lines = [
        f"{answer['path']}: {answer['examples']:,} interactions of {answer['users']:,} users with {answer['items']:,}"
        f" items, {format_bytes(answer['bytes'])}, in {time}",
        f"  read as --format {answer['form']}: {counts['interactions_read']:,} interactions of"
        f" {counts['users_read']:,} users with {counts['items_read']:,} items"
        + ("" if answer["times"] else ", in the order of time as they stand"),
        *_remarks(counts),
        f"  clusters: {answer['clusters']:,} by {answer['clustering']}, the largest of"
        f" {answer['largest_cluster']:,} items{split}",
    ]
    return "\n".join(lines)


def describe_interactions(folder: Path | str) -> dict[str, Any]:
    """Returns sizes and spreads of a set. An incomplete set is refused, as a run would."""
    import numpy as np

    from plimsoll.recipes.recommend.interactions import Interactions

    data = Interactions(folder)
    data.check()
    often = np.bincount(data.sequences, minlength=data.items + 1)
    counts = {"sequence": np.diff(data.offsets), "item": often[1:], "cluster": np.bincount(data.cluster_of[1:])}
    spread = {
        name: {"least": int(values.min()), "mean": float(values.mean()), "most": int(values.max())}
        for name, values in counts.items()
    }
    top = np.argsort(-often, kind="stable")[:SHOWN]
    return {
        "path": str(data.folder),
        "bytes": sum(path.stat().st_size for path in data.folder.iterdir() if path.is_file()),
        "users": data.users,
        "items": data.items,
        "interactions": len(data),
        "evaluated_users": len(data.evaluated),
        "training_interactions": int((data.ends["train"] - data.offsets[:-1]).sum()),
        "sequence": spread["sequence"],
        "item": spread["item"],
        "clusters": data.clusters,
        "clustering": data.about.get("clustering"),
        "cluster": spread["cluster"],
        "embedding_size": data.about["embedding_size"],
        "embeddings": data.about.get("embeddings"),
        "most_taken": [{"name": data.names[item - 1], "times": int(often[item])} for item in top.tolist() if item],
        "counts": data.about.get("counts", {}),
        "made_with": data.made_with.options,
    }


def interactions_table(about: Mapping[str, Any]) -> str:
    held = f"{about['evaluated_users']:,} items for validation and as many for testing"
    begin = f"{about['embedding_size']} numbers each, by {about['embeddings']}" if about["embedding_size"] else "none"
    spread = {
        name: "{least:,} to {most:,} (mean {mean:,.1f})".format_map(about[name])
        for name in ("sequence", "item", "cluster")
    }
    rows = [
        ("interactions", f"{about['interactions']:,}: {about['training_interactions']:,} to train on, {held}"),
        ("users", f"{about['users']:,}, each with {spread['sequence']} items"),
        ("items", f"{about['items']:,}, each taken {spread['item']} times"),
        ("most taken", ", ".join(f"{item['name']} ({item['times']:,} times)" for item in about["most_taken"])),
        ("clusters", f"{about['clusters']:,} by {about['clustering']}, each with {spread['cluster']} items"),
        ("embeddings", begin),
    ]
    lines = [f"{about['path']}: interactions, {format_bytes(about['bytes'])} on disk", "", *all_labelled(rows)]
    if remarks := _remarks(about["counts"]):
        lines += ["", "  of the file it was made from", *(f"  {line}" for line in remarks)]
    options = [
        (f"  --{name.replace('_', '-')}", str(value)) for name, value in about["made_with"].items() if value is not None
    ]
    lines += ["", *labelled("made with", ""), *columns(options, align="ll")]
    return "\n".join(lines)


def _remarks(counts: Mapping[str, int]) -> list[str]:
    return [f"  {words}: {counts[name]:,}" for name, words in REMARKS.items() if counts.get(name)]
