"""What `plimsoll rank` and `plimsoll evaluate` print of a run of recommend. Pure: a description in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns

MIXED, MODEL, RAW = "this run", "its model alone", "its raw weights"
SPLITS = "validation", "test"


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
    """Returns a table of validation and one of test: the run, and the baselines below it."""
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
