"""Shuffle of a stream in a buffer: its items leave in a permuted order while those of the next buffer come in.

The order and the positions are those of Grain's `WindowShuffleIterDataset`, whose buffer is filled as a whole before
the first item leaves it: whoever waits for a batch then waits for thousands. Here an item is read for each one that
leaves, so that the same memory holds the end of one buffer and the beginning of the next.
"""

from __future__ import annotations

from typing import Any

import grain


class BufferShuffle(grain.IterDataset):
    """The items of `parent`, of which each `size` are permuted among themselves."""

    def __init__(self, parent: grain.IterDataset, *, size: int, seed: int) -> None:
        super().__init__(parent)
        self._items, self._size, self._seed = parent, size, seed

    def __iter__(self) -> grain.DatasetIterator:
        return _Shuffle(iter(self._items), self._size, self._seed)


class _Shuffle(grain.DatasetIterator):
    def __init__(self, items: grain.DatasetIterator, size: int, seed: int) -> None:
        super().__init__(items)
        self._items, self._size, self._seed = items, size, seed
        self._number = self._taken = 0
        """Which buffer items leave, and how many have left it."""
        self._start: Any = items.get_state()
        """Position before the items of that buffer."""
        self._leaving: list[Any] = []
        """Items of that buffer as they were read; None for those that left."""
        self._left = 0
        self._coming: list[Any] = []
        self._coming_start = self._start
        self._problem: Exception | None = None
        """Error (or end) that was met while reading ahead: it is due when the buffer is empty."""
        self._restored = False

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._restored:
            taken, self._restored = self._taken, False
            self._turn()
            while self._left and self._taken < taken:
                self._leave()
            self._taken = taken
        if not self._left:
            self._turn()
        self._read(-(-(self._size - len(self._coming)) // self._left))
        item = self._leave()
        self._number += not self._left
        return item

    def _leave(self) -> Any:
        self._taken, self._left = self._taken + 1, self._left - 1
        place = int(self._order[self._number * len(self._leaving) + self._left] or 0)
        item, self._leaving[place] = self._leaving[place], None
        return item

    def _read(self, count: int) -> None:
        """Reads so many items into the buffer that comes."""
        for _ in range(count if self._problem is None else 0):
            if not self._coming:
                self._coming_start = self._items.get_state()
            try:
                self._coming.append(next(self._items))
            except Exception as problem:  # it is raised later
                self._problem = problem
                return

    def _turn(self) -> None:
        """Fills the buffer that comes, and begins to empty it."""
        self._read(self._size - len(self._coming))
        if self._problem is not None and not (self._coming and isinstance(self._problem, StopIteration)):
            problem, self._problem = self._problem, None
            raise problem
        self._start, self._leaving, self._coming, self._taken = self._coming_start, self._coming, [], 0
        self._left = len(self._leaving)
        self._order = grain.MapDataset.range(self._left).shuffle(seed=self._seed).repeat()

    def get_state(self) -> dict[str, Any]:
        return {
            "parent_window_start_state": self._start,
            "window_index": self._number,
            "pos_in_window": self._taken,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._start, self._number = state["parent_window_start_state"], state["window_index"]
        self._taken = state["pos_in_window"]
        self._items.set_state(self._start)
        self._leaving, self._left, self._coming, self._problem, self._restored = [], 0, [], None, True
