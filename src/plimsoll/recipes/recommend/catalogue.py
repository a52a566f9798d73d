"""Names of the items of a set of interactions: `items.jsonl`, a line per item, in the order of ids.

    {"id": 1, "original": "12", "title": "Toy Story (1995)"}

Ids begin with 1, because 0 is padding; `original` is the item's name in the prepared file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from plimsoll.errors import DataError

ITEMS = "items.jsonl"


class Catalogue:
    """Names of items. `titles` has None for an item without a title."""

    def __init__(self, originals: Sequence[str], titles: Sequence[str | None]) -> None:
        self.originals, self.titles = list(originals), list(titles)

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        path = folder / ITEMS
        if not path.is_file():
            raise DataError(f"there is no {ITEMS} in {folder}: the data set is not whole. Prepare it again")
        originals: list[str] = []
        titles: list[str | None] = []
        try:
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    item = json.loads(line)
                    if item["id"] != number:
                        raise ValueError(f"it has the id {item['id']}")
                    originals.append(str(item["original"]))
                    titles.append(None if item["title"] is None else str(item["title"]))
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            words = f"it has no {problem}" if isinstance(problem, KeyError) else problem
            raise DataError(
                f"{path}, line {len(originals) + 1:,}, is no item with its id, original and title ({words}): prepare"
                " the data set again"
            ) from None
        return cls(originals, titles)

    def write(self, folder: Path) -> None:
        with open(folder / ITEMS, "w", encoding="utf-8") as file:
            for number, (original, title) in enumerate(zip(self.originals, self.titles, strict=True), 1):
                item = {"id": number, "original": original, "title": title}
                file.write(json.dumps(item, ensure_ascii=False) + "\n")

    def __len__(self) -> int:
        return len(self.originals)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by original name."""
        return {original: number for number, original in enumerate(self.originals, 1)}

    def name(self, item: int) -> str:
        """Returns the title of an item, or its original name if it has none."""
        return self.titles[item - 1] or self.originals[item - 1]

    @property
    def sha256(self) -> str:
        return catalogue_sha256(self.originals)


def catalogue_sha256(originals: Iterable[str]) -> str:
    """Returns a hash of the original names in order, which identifies a catalogue."""
    return hashlib.sha256(json.dumps(list(originals)).encode()).hexdigest()
