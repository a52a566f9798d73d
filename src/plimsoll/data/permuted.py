"""A data set that can be indexed, sampled in the order of a permutation; the position is two numbers.

Every epoch is one permutation of all items, another for every epoch. It is computed index by index, not kept: the
permutation itself would take 8 bytes an item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import grain

from plimsoll.data.batch_source import Positioned


class Permuted(Positioned):
    """Items without end, or of `epochs`; in their own order without a `seed`."""

    start: ClassVar = {"epoch": 0, "index": 0}

    def __init__(
        self, items: Sequence[Any], *, size: Mapping[str, int], seed: int | None, epochs: int | None = None
    ) -> None:
        super().__init__(size=size)
        self.items, self.epochs = items, epochs
        order = grain.MapDataset.range(len(items))
        self.order = (order if seed is None else order.shuffle(seed=seed % 2**31)).repeat()

    def walk(self, at: dict[str, Any]) -> Iterator[Any]:
        count = len(self.items)
        while self.epochs is None or at["epoch"] < self.epochs:
            item = self.items[int(self.order[at["epoch"] * count + at["index"]] or 0)]
            epochs, at["index"] = divmod(at["index"] + 1, count)
            at["epoch"] += epochs
            yield item
