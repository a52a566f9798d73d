"""Names of the items of a set of interactions: `items.jsonl`, a line per item, in the order of ids.

    {"id": 1, "original": "12"}

Ids begin with 1, because 0 is padding; `original` is the item's name in the prepared file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError

ITEMS = "items.jsonl"


@dataclass(frozen=True)
class Catalogue:
    """Names of items, in the order of their ids."""

    originals: list[str]
    """Names in the prepared file."""

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        path = folder / ITEMS
        if not path.is_file():
            raise DataError(f"there is no {ITEMS} in {folder}: the data set is not whole. Prepare it again")
        catalogue = cls([])
        try:
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    item = json.loads(line)
                    if item["id"] != number:
                        raise ValueError(f"it has the id {item['id']}")
                    catalogue.originals.append(str(item["original"]))
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            words = f"it has no {problem}" if isinstance(problem, KeyError) else problem
            raise DataError(
                f"{path}, line {len(catalogue.originals) + 1:,}, is no item with its id and original ({words}):"
                " prepare the data set again"
            ) from None
        return catalogue

    def write(self, folder: Path) -> None:
        with open(folder / ITEMS, "w", encoding="utf-8") as file:
            for item in range(1, len(self.originals) + 1):
                file.write(json.dumps(self.described(item), ensure_ascii=False) + "\n")

    def described(self, item: int) -> dict[str, Any]:
        """Returns the id and the original name of an item."""
        return {"id": item, "original": self.originals[item - 1]}

    @property
    def sha256(self) -> str:
        """Hash of the original names in order, which identifies a catalogue."""
        return hashlib.sha256(json.dumps(self.originals).encode()).hexdigest()
