"""A Grain data set of batches as a `types.Source`: the position of the consumer in JSON, a thread that ends."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import grain
import numpy as np

from plimsoll.errors import DataError


class BatchSource:
    """A `types.Source`. Not for use by two threads at the same time."""

    other_kind: ClassVar[str] = "shuffled and not differ"
    """Kinds of loaders whose positions differ, for the refusal of the wrong one."""

    def __init__(self, batches: grain.IterDataset) -> None:
        self._held = [iter(batches)]
        # A prefetch thread alive at interpreter exit can abort the process; a finalizer runs before that.
        self._finalizer = weakref.finalize(self, _close, self._held)
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


def _close(held: list[grain.DatasetIterator]) -> None:
    # Grain closes again when the iterator is deleted, and fails if its modules are gone: let go of it now.
    held.pop().close()
