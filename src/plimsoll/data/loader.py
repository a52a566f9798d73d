"""Endless batches of a stream, or of examples that are read by index. A position in the data is JSON.

    Loader(stream, prefetch=2)
    permuted(read, count, batch_size=64, seed=7, prefetch=2, facts={"examples": count})

Grain prefetches batches, and tracks the position after the last consumed batch. NumPy permutes the examples of an
epoch, because Grain's `shuffle` takes 9 to 30 us per example. Of 65,537 or 262,145 examples it also omits one, and
repeats another.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from plimsoll.errors import DataError

Batch = dict[str, np.ndarray]
Read = Callable[[np.ndarray], Batch]
"""Function from the indices of examples to the batch of these examples."""


class Stream(grain.IterDataset):
    """Batches in the fixed order of `walk`. A position in the stream is a small dict of JSON values."""

    start: ClassVar[Mapping[str, Any]]
    """The position before the first batch."""

    def __init__(self, *, facts: Mapping[str, int], name: str = "the data set") -> None:
        """Stores sizes that identify the data, like {"tokens": 4096}, and the data's name in error messages.

        Every saved position includes these sizes. Restoring a position with other sizes raises DataError.
        """
        super().__init__()
        self.facts = dict(facts)
        self.name = name

    @abstractmethod
    def walk(self, at: dict[str, Any]) -> Iterator[Any]:
        """Yields the batches after the position `at`. Before yielding a batch, sets `at` to the position after it."""

    def __iter__(self) -> grain.DatasetIterator:
        return _Walker(self)


class GroupStream(Stream):
    """Endless batches of rows that are loaded in groups. A batch may hold rows of several groups and two epochs."""

    start: ClassVar = {"epoch": 0, "group": 0, "row": 0, "skipped": 0}
    """The position before the first row. `skipped` counts the rows that were left out in all earlier groups."""
    batch_size: int
    groups: int
    """Groups per epoch."""

    @abstractmethod
    def load(self, epoch: int, group: int) -> tuple[int, int]:
        """Loads a group. Returns the number of its rows, and the number of rows that were left out."""

    @abstractmethod
    def take(self, first: int, end: int) -> Any:
        """Returns rows `first` to `end` - 1 of the loaded group."""

    @abstractmethod
    def join(self, parts: list[Any]) -> Batch:
        """Joins results of `take` into a batch."""

    def walk(self, at: dict[str, Any]) -> Iterator[Batch]:
        position = dict(at)
        rows = skipped = 0
        is_ready = False
        empty_groups = 0
        while True:
            parts = []
            missing = self.batch_size
            while missing:
                if not is_ready:
                    rows, skipped = self.load(position["epoch"], position["group"])
                    is_ready = True
                end = min(rows, position["row"] + missing)
                if end > position["row"]:
                    parts.append(self.take(position["row"], end))
                    missing -= end - position["row"]
                    position["row"] = end
                    empty_groups = 0

                # Move to the next group, or from the last group to the next epoch.
                if end == rows:
                    is_ready = False
                    empty_groups += 1
                    if empty_groups > self.groups:
                        raise DataError(f"{self.name} has no row to train on: all of an epoch were left out")
                    epochs, group = divmod(position["group"] + 1, self.groups)
                    position |= {"epoch": position["epoch"] + epochs, "group": group, "row": 0}
                    position["skipped"] += skipped
            batch = self.join(parts)
            at.update(position)  # only after the read: a failed read is tried again
            yield batch


class _Walker(grain.DatasetIterator):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._position = dict(stream.start)
        self._batches = stream.walk(self._position)

    def __next__(self) -> Any:
        self._assert_not_closed()
        try:
            return next(self._batches)
        except Exception:
            # A generator that raised has ended. The next call uses a new one, from the same position.
            self._batches = self._stream.walk(self._position)
            raise

    def get_state(self) -> dict[str, Any]:
        return self._position | {"facts": self._stream.facts}

    def set_state(self, state: dict[str, Any]) -> None:
        then, now = state["facts"], self._stream.facts
        if then != now:
            raise DataError(
                f"the data position was saved for {_in_words(then)}, and {self._stream.name} has {_in_words(now)}: the"
                " data or an option has changed. Put the old data or option back, or start a new run"
            )
        self._position = {name: state[name] for name in self._stream.start}
        self._batches = self._stream.walk(self._position)


def _in_words(facts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in facts.items())


class Loader:
    """Iterator over the batches of a stream, with a position that can be saved. Not thread-safe."""

    def __init__(self, stream: Stream, *, prefetch: int = 0) -> None:
        """Starts at the first batch. A thread prepares `prefetch` batches in advance; 0 for no thread."""
        batches: grain.IterDataset = stream
        if prefetch:
            batches = ThreadPrefetchIterDataset(stream, prefetch_buffer_size=prefetch)
        self._held = [iter(batches)]
        # A prefetch thread that is alive at interpreter exit can abort the process, so a finalizer closes the iterator.
        # Grain closes the iterator again when it is deleted, which fails once modules are unloaded. `pop` removes the
        # last reference, so that the iterator is deleted before.
        self._finalizer = weakref.finalize(self, lambda held: held.pop().close(), self._held)
        self._last_state: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._open())

    def _open(self) -> grain.DatasetIterator:
        if not self._held:
            raise ValueError("the loader was closed")
        return self._held[0]

    def state(self) -> dict[str, Any]:
        """Returns the position, less than 1 KiB of JSON. `restore` continues with the first batch not yet consumed."""
        return self._last_state or self._open().get_state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a result of `state`. A text stream refills its shuffle buffer (1 s per million tokens)."""
        self._open().set_state(state)

    def close(self) -> None:
        """Stops the prefetch thread and waits for it. May be called twice. `state` still returns the last position."""
        if self._held:
            self._last_state = self.state()
        self._finalizer()


class Order:
    """Order of `count` examples: a new permutation in each epoch, or the order of the data without a `seed`."""

    def __init__(self, count: int, seed: int | None) -> None:
        self.count = count
        self.seed = seed
        self._epoch = -1
        self._numbers = np.arange(count, dtype=np.int32)

    def of_epoch(self, epoch: int) -> np.ndarray:
        """Returns the indices of all examples, int32, in the epoch's order. Caches the order of the newest epoch."""
        if self.seed is not None and epoch != self._epoch:
            self._numbers = np.arange(self.count, dtype=np.int32)
            np.random.default_rng([self.seed, epoch]).shuffle(self._numbers)
            self._epoch = epoch
        return self._numbers

    def numbers(self, place: int, count: int) -> np.ndarray:
        """Returns the indices of `count` examples. `place` is the number of examples before them, in all epochs."""
        parts = []
        while count:
            epoch, first = divmod(place, self.count)
            part = self.of_epoch(epoch)[first : first + count]
            parts.append(part)
            place += len(part)
            count -= len(part)
        return np.concatenate(parts)


def permuted(
    read: Read,
    count: int,
    *,
    batch_size: int,
    seed: int | None,
    prefetch: int,
    facts: Mapping[str, int],
    name: str = "the data set",
) -> Loader:
    """Returns a loader of examples in an `Order`: a batch may hold the end of one epoch and the start of the next.

    Args:
        read: Reads a batch, given the indices of its examples.
        count: Number of all examples.
        batch_size: Examples per batch.
        seed: Seed of the permutations; None for the order of the data.
        prefetch: Batches that a thread prepares in advance; 0 for no thread.
        facts: Sizes that identify the data (`Stream`).
        name: Name of the data in error messages.
    """
    return Loader(_Permuted(read, Order(count, seed), batch_size, facts, name), prefetch=prefetch)


class _Permuted(Stream):
    start: ClassVar = {"examples_before": 0}

    def __init__(self, read: Read, order: Order, batch_size: int, facts: Mapping[str, int], name: str) -> None:
        super().__init__(facts=facts, name=name)
        self._read = read
        self._order = order
        self._batch_size = batch_size

    def walk(self, at: dict[str, Any]) -> Iterator[Batch]:
        while True:
            batch = self._read(self._order.numbers(at["examples_before"], self._batch_size))
            at["examples_before"] += self._batch_size
            yield batch
