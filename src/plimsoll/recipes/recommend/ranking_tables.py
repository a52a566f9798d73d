"""What `plimsoll rank` and `plimsoll evaluate` print of a run of recommend. Pure: a description in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL, RAW = "this run", "its raw weights"
SPLITS = "validation", "test"


def ranking_text(found: Mapping[str, Any]) -> str:
    history, items = found["history"], found["items"]
    lines = [f"{found['run']} at step {found['step']:,}, after {', '.join(map(_name, history))}"]
    if found["read"] < len(history):
        lines.append(f"  the model reads the last {found['read']:,} of these {len(history):,} items (--seq-len)")
    width = max((len(one["original"]) for one in items), default=0)
    for place, one in enumerate(items, 1):
        title = f"  {one['title']}" if one["title"] else ""
        score = f"{100 * one['probability']:7.3f} %  log p {one['score']:8.3f}"
        lines.append(f"  {place:>3}  {score}  {one['original']:<{width}}{title}".rstrip())
    return "\n".join(lines)


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['original']} ({one['title']})" if one["title"] else one["original"]


def recommendation_tables(found: Mapping[str, Any]) -> str:
    """Returns a table of validation, unless it was trained on, and one of test: the run, and the baselines below it."""
    kept = "kept" if found["keep_seen"] else "left out"
    lines = [
        f"{found['run']} at step {found['step']:,}: all items ranked, those already seen {kept}, ties count against"
    ]
    for split in (split for split in SPLITS if split in found):
        raw = {RAW: found["raw"][split]} if "raw" in found else {}
        rows = {MODEL: found[split], **raw, **found["baselines"][split]}
        names = [name for name in found[split] if name != "users"]
        width = max(map(len, rows)) + 2
        lines += ["", f"  {split}, {found[split]['users']:,} users"]
        lines.append(f"  {'':<{width}}" + "".join(f"{name:>9}" for name in names))
        for row, values in rows.items():
            lines.append(f"  {row:<{width}}" + "".join(f"{values[name]:9.4f}" for name in names))
    return "\n".join(lines)
