"""A data set that can be indexed, sampled in the order of a permutation; the position is two numbers.

Every epoch is one permutation of all items, another for every epoch. It is computed index by index, not kept: the
permutation itself would take 8 bytes an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grain

from plimsoll.errors import DataError


class Permuted(grain.IterDataset):
    """Items without end, or of `epochs`; in their own order without a `seed`.

    `size` identifies the set when a position is restored: its unit and how many, like {"tokens": 4096}.
    """

    def __init__(
        self, items: Sequence[Any], *, size: Mapping[str, int], seed: int | None, epochs: int | None = None
    ) -> None:
        super().__init__()
        self.items, self.size, self.epochs, self.count = items, dict(size), epochs, len(items)
        order = grain.MapDataset.range(self.count)
        self.order = (order if seed is None else order.shuffle(seed=seed % 2**31)).repeat()

    def __iter__(self) -> grain.DatasetIterator:
        return _PermutedIterator(self)


class _PermutedIterator(grain.DatasetIterator):
    def __init__(self, of: Permuted) -> None:
        super().__init__()
        self._of = of
        self._taken = 0

    def __next__(self) -> Any:
        self._assert_not_closed()
        of = self._of
        if of.epochs is not None and self._taken >= of.epochs * of.count:
            raise StopIteration
        item = of.items[int(of.order[self._taken] or 0)]
        self._taken += 1
        return item

    def get_state(self) -> dict[str, Any]:
        epoch, index = divmod(self._taken, self._of.count)
        return {"epoch": epoch, "index": index, **self._of.size}

    def set_state(self, state: dict[str, Any]) -> None:
        for unit, count in self._of.size.items():
            if state[unit] != count:
                raise DataError(
                    f"the data position was saved for {state[unit]:,} {unit}, and the data set has {count:,}: it"
                    " changed. Put the old data back, or start a new run."
                )
        self._taken = state["epoch"] * self._of.count + state["index"]
