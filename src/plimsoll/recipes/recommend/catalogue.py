"""Names of the items of a set of interactions: `items.jsonl`, a line per item, in the order of ids.

    {"id": 1, "original": "12"}

Ids begin with 1, because 0 is padding; `original` is the item's name in the prepared file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ITEMS = "items.jsonl"


@dataclass(frozen=True)
class Catalogue:
    """Names of items, in the order of their ids."""

    originals: list[str]
    """Names in the prepared file."""

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        with open(folder / ITEMS, encoding="utf-8") as lines:
            return cls([json.loads(line)["original"] for line in lines])

    def write(self, folder: Path) -> None:
        with open(folder / ITEMS, "w", encoding="utf-8") as file:
            for item in range(1, len(self.originals) + 1):
                file.write(json.dumps(self.described(item), ensure_ascii=False) + "\n")

    def described(self, item: int) -> dict[str, Any]:
        """Returns the id and the original name of an item."""
        return {"id": item, "original": self.originals[item - 1]}
