"""Texts of `plimsoll prepare` and `inspect` for a set of interactions, and of `rank` and `evaluate` for a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.report.layout import all_labelled, columns, labelled
from plimsoll.units import format_bytes, format_seconds

MIXED, MODEL, RAW = "this run", "its model alone", "its raw weights"
SPLITS = "validation", "test"
REMARKS = {
    "rated_lower": "rated below --min-rating, and left out",
    "repeats": "repeats of an item by the same user, left out",
    "interactions_dropped": "left out with the users and items that have too few",
    "users_dropped": "users with too few",
    "items_dropped": "items with too few",
    "users_only_trained_on": "users with fewer than three, who are trained on and not evaluated",
}
"""Phrases that `prepare` prints after these counts. Counts of 0 are not printed."""


def prepared_text(answer: Mapping[str, Any]) -> str:
    counts = answer["counts"]
    seconds = format_seconds(answer["seconds"])
    lines = [
        f"{answer['path']}: {answer['examples']:,} interactions of {answer['users']:,} users with {answer['items']:,}"
        f" items, {format_bytes(answer['bytes'])}, in {seconds} ({answer['examples_per_second']:,.0f} interactions/s)",
        f"  read as --format {answer['form']}: {counts['interactions_read']:,} interactions of"
        f" {counts['users_read']:,} users with {counts['items_read']:,} items",
        *_remarks(counts),
        f"  clusters: {answer['clusters']:,} by {answer['clustering']}, the largest of"
        f" {answer['largest_cluster']:,} items",
    ]
    return "\n".join(lines)


def describe_interactions(folder: Path | str) -> dict[str, Any]:
    """Returns the sizes and options of a set of interactions. Raises DataError if it is damaged or incomplete."""
    from plimsoll.recipes.recommend.interactions import Interactions

    data = Interactions(folder)
    data.check()
    return {
        "path": str(data.folder),
        "bytes": sum(path.stat().st_size for path in data.folder.iterdir() if path.is_file()),
        "users": data.users,
        "items": data.items,
        "interactions": len(data),
        "evaluated_users": len(data.evaluated),
        "training_interactions": int((data.ends["train"] - data.offsets[:-1]).sum()),
        "clusters": data.clusters,
        "clustering": data.about["clustering"],
        "largest_cluster": data.about["largest_cluster"],
        "embedding_size": data.about["embedding_size"],
        "counts": data.about["counts"],
        "made_with": data.made_with.options,
    }


def interactions_table(about: Mapping[str, Any]) -> str:
    users = about["users"]
    interactions = about["interactions"]
    held_out = f"{about['evaluated_users']:,} items for validation and as many for testing"
    rows = [
        ("interactions", f"{interactions:,}: {about['training_interactions']:,} to train on, {held_out}"),
        ("users", f"{users:,}, each with {interactions / users:,.1f} items on average"),
        ("items", f"{about['items']:,}"),
        ("clusters", f"{about['clusters']:,} by {about['clustering']}, of {about['largest_cluster']:,} items at most"),
        ("embeddings", f"of {about['embedding_size']} numbers" if about["embedding_size"] else "none"),
    ]
    options = [
        (f"  --{name.replace('_', '-')}", str(value)) for name, value in about["made_with"].items() if value is not None
    ]
    return "\n".join(
        [
            f"{about['path']}: interactions, {format_bytes(about['bytes'])} on disk",
            "",
            *all_labelled(rows),
            *_remarks(about["counts"]),
            "",
            *labelled("made with", ""),
            *columns(options, align="ll"),
        ]
    )


def _remarks(counts: Mapping[str, int]) -> list[str]:
    return [f"  {words}: {counts[name]:,}" for name, words in REMARKS.items() if counts.get(name)]


def ranking_text(answer: Mapping[str, Any]) -> str:
    history, items = answer["history"], answer["items"]
    names = ", ".join(item["original"] for item in history)
    lines = [f"{answer['run']} at step {answer['step']:,}, after {names}"]
    if answer["read"] < len(history):
        lines.append(f"  the model reads the last {answer['read']:,} of these {len(history):,} items (--seq-len)")
    for place, item in enumerate(items, 1):
        score = f"{100 * item['probability']:7.3f} %  log p {item['score']:8.3f}"
        lines.append(f"  {place:>3}  {score}  {item['original']}")
    return "\n".join(lines)


def recommendation_tables(answer: Mapping[str, Any]) -> str:
    """Returns tables for validation and test, with a row for the run and, below it, rows for the baselines."""
    kept = "kept" if answer["keep_seen"] else "left out"
    lines = [
        f"{answer['run']} at step {answer['step']:,}: all items ranked, those already seen {kept}, ties count against."
        " This run is its model mixed in equal parts with the three item_knn below"
    ]
    for split in SPLITS:
        raw = {RAW: answer["raw"][split]} if "raw" in answer else {}
        means = {MIXED: answer[split], MODEL: answer["model"][split], **raw, **answer["baselines"][split]}
        names = [name for name in answer[split] if name != "users"]
        rows = [["", *names]]
        for title, values in means.items():
            rows.append([title, *(f"{values[name]:.4f}" for name in names)])
        lines += ["", f"  {split}, {answer[split]['users']:,} users"]
        lines += columns(rows, align="l" + "r" * len(names))
    return "\n".join(lines)
