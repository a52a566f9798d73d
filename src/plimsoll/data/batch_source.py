"""Data sets of batches with positions in JSON, and the `types.Source` that reads one: a thread that ends."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from plimsoll.data.permutation import Order
from plimsoll.errors import DataError


class Positioned(grain.IterDataset):
    """Items that `walk` yields. Their position is a few values of JSON, which `walk` keeps up to date."""

    start: ClassVar[Mapping[str, Any]] = {"epoch": 0, "group": 0, "row": 0}
    """The position before the first item."""
    words: ClassVar[Mapping[str, str]] = {}
    """Names of `size` as a refusal writes them, where they are not words themselves."""
    other_size: ClassVar[str] = "it changed, or an option did. Put the old one back, or start a new run"
    """End of the refusal of a position that was saved with another `size`."""

    def __init__(self, *, size: Mapping[str, int], name: str = "the data set") -> None:
        """Keeps the sizes that identify the data, like {"tokens": 4096}: they are saved with every position.

        A position that was saved with other ones is refused; `name` is what the refusal calls the data.
        """
        super().__init__()
        self.size, self.name = dict(size), name

    @abstractmethod
    def walk(self, at: dict[str, Any]) -> Iterator[Any]:
        """Yields the items after the position `at`, which is the position after an item when that is yielded."""

    def __iter__(self) -> grain.DatasetIterator:
        return _Walker(self)


class _Walker(grain.DatasetIterator):
    def __init__(self, of: Positioned) -> None:
        super().__init__()
        self._of, self._at = of, dict(of.start)
        self._items: Iterator[Any] | None = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        self._items = self._items or self._of.walk(self._at)
        try:
            return next(self._items)
        except BaseException:  # a generator that has raised would only end: the next call begins another one
            self._items = None
            raise

    def get_state(self) -> dict[str, Any]:
        return self._at | self._of.size

    def set_state(self, state: dict[str, Any]) -> None:
        for unit, count in self._of.size.items():
            if state[unit] != count:
                raise DataError(
                    f"the data position was saved for {state[unit]:,} {self._of.words.get(unit, unit)}, and"
                    f" {self._of.name} has {count:,}: {self._of.other_size}"
                )
        self._at, self._items = {name: state[name] for name in self._of.start}, None


class Permuted(Positioned):
    """Items that can be indexed, in a permutation of all of them for each epoch; in their own order without a `seed`.

    Without end, or `epochs` of them. What is kept of a permutation is a part of it.
    """

    start: ClassVar = {"epoch": 0, "index": 0}

    def __init__(
        self, items: Sequence[Any], *, size: Mapping[str, int], seed: int | None, epochs: int | None = None
    ) -> None:
        super().__init__(size=size)
        self.items, self.epochs = items, epochs
        self.order = Order(len(items), seed)

    def walk(self, at: dict[str, Any]) -> Iterator[Any]:
        while self.epochs is None or at["epoch"] < self.epochs:
            for index in self.order.after(at["epoch"], at["index"]).tolist():
                item = self.items[index]
                epochs, at["index"] = divmod(at["index"] + 1, self.order.count)
                at["epoch"] += epochs
                yield item


class PermutedBatches(Positioned):
    """Batches of items that can be read together, without end, in the order and at the positions of `Permuted`."""

    start: ClassVar = Permuted.start

    def __init__(
        self,
        read: Callable[[np.ndarray], Any],
        count: int,
        *,
        batch_size: int,
        size: Mapping[str, int],
        seed: int | None,
    ) -> None:
        """`read` returns the batch of the items with the indices it is given; `count` is the number of all items."""
        super().__init__(size=size)
        self.read, self.batch_size, self.order = read, batch_size, Order(count, seed)

    def walk(self, at: dict[str, Any]) -> Iterator[Any]:
        epoch, index = at["epoch"], at["index"]
        coming = self.order.after(epoch, index)
        while True:
            parts, wanted = [], self.batch_size
            while wanted:
                if not len(coming):
                    coming = self.order.after(epoch, index)
                part, coming = coming[:wanted], coming[wanted:]
                parts.append(part)
                wanted -= len(part)
                epochs, index = divmod(index + len(part), self.order.count)
                epoch += epochs
            batch = self.read(parts[0] if len(parts) == 1 else np.concatenate(parts))
            at["epoch"], at["index"] = epoch, index  # once it is read: a read that fails is tried again
            yield batch


class BatchSource:
    """A `types.Source`. Not for use by two threads at the same time."""

    other_kind: ClassVar[str] = "shuffled and not differ"
    """Kinds of loaders whose positions differ, for the refusal of the wrong one."""

    def __init__(self, batches: grain.IterDataset, *, prefetch: int = 0) -> None:
        """Starts at the first batch. `prefetch`: batches that a thread makes ready; 0 for no thread."""
        if prefetch:
            batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
        self._held = [iter(batches)]
        # A prefetch thread alive at interpreter exit can abort the process; a finalizer runs before that.
        # Grain closes again when the iterator is deleted, and fails if its modules are gone: let go of it then.
        self._finalizer = weakref.finalize(self, lambda held: held.pop().close(), self._held)
        self._last_state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        return next(self._open())

    def _open(self) -> grain.DatasetIterator:
        if not self._held:
            raise ValueError("the loader was closed")
        return self._held[0]

    def state(self) -> dict[str, Any]:
        """Returns the position, below 1 KiB of JSON: `restore` continues with the batch that was not taken yet."""
        return self._last_state or self._open().get_state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`. A stream reads its shuffle buffer again: about a second per million tokens."""
        try:
            self._open().set_state(state)
        except (KeyError, TypeError) as problem:
            raise DataError(
                f"the saved data position was written by another kind of loader ({self.other_kind}). Keep the options"
                " of the run, or start a new one."
            ) from problem

    def close(self) -> None:
        """Stops the prefetch thread and waits for it. May be called twice; `state()` stays what it was."""
        if self._held:
            self._last_state = self.state()
        self._finalizer()
