"""A user's own data set: a dict of arrays, or any object with `len()` and `[index]`.

    data = {"x": images, "y": labels}      # arrays of equal length: example i has row i of each
    data = MyImages("photos/")             # data[i] is a dict of arrays, numbers or booleans

Every example must have the names, shapes and types of the first. A resumed run finds its place by an index, so a
generator raises DataError. 64-bit numbers become 32-bit ones, as in JAX; integers that do not fit raise DataError.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from plimsoll.data.loader import Loader, permuted
from plimsoll.data.loader_bytes import order_bytes
from plimsoll.errors import DataError, PlimsollError
from plimsoll.types import COUNTED

Example = dict[str, np.ndarray]

HANDED_OVER = 256 * 2**10
"""Largest batch of in-memory arrays, in bytes, that is read without a prefetch thread. Reading it takes 10 to 50 us,
but receiving it from a thread 60 us, because of Python's lock (notes, "Small steps").
"""

_NARROW = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (("float64", "float32"), ("complex128", "complex64"), ("int64", "int32"), ("uint64", "uint32"))
}


class ExampleSet(Sized):
    """Examples of equal shapes: arrays and sequences (`Examples`), or an HDF5 file (`hdf5.columns.Hdf5`)."""

    called: str
    """Name of the data set in error messages."""
    spec: Mapping[str, tuple[tuple[int, ...], str]]
    """Dict from the name of each array of an example to the array's shape and dtype."""

    @abstractmethod
    def loader(self, *, batch_size: int, seed: int, shuffle: bool, prefetch: int) -> Loader:
        """Returns an endless iterator over training batches, which are dicts from name to NumPy array.

        No example is dropped: a batch may hold the end of an epoch and the beginning of the next.

        Args:
            batch_size: Examples per batch.
            seed: Seed of the shuffling.
            shuffle: Whether to shuffle the examples, in a new order in each epoch.
            prefetch: Number of batches that a background thread prepares in advance.

        Returns:
            The iterator. `state()` returns its position in the data as a JSON-serialisable dict, and `restore(state)`
            continues from there.
        """

    @abstractmethod
    def counted(self, batch_size: int) -> Iterator[Example]:
        """Yields batches for evaluation, which hold every example once, in order. All have the same size.

        A batch is a dict from name to NumPy array. Copies of its last example pad the last batch. The boolean array
        "counted" of each batch is False for padding.

        Args:
            batch_size: Examples per batch.
        """

    @abstractmethod
    def held_bytes(self, *, training: bool) -> int:
        """Returns the bytes of host memory that reading all examples adds to that of the opened data set.

        Args:
            training: Whether the examples are read for training (True) or for evaluation (False).
        """


class Examples(ExampleSet, Sequence[Example]):
    """Examples from a user's arrays or object. All have arrays of the same names, shapes and dtypes."""

    def __init__(
        self, given: Any, *, called: str, failure: Callable[[str, Exception], Exception] | None = None
    ) -> None:
        """Reads the first example.

        Args:
            given: The user's data: a dict of arrays, or an object with `len()` and `[index]`.
            called: Name of the data set in error messages.
            failure: Function from a message and the error of the user's code to the error to raise. If None, the user's
                error is raised.
        """
        self.called = called
        self._failure = failure
        self._given = given
        self._arrays = _arrays_of_one_length(given, called) if isinstance(given, Mapping) else {}
        if not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
            raise DataError(
                f"{called} is a {type(given).__name__}, which has no len() and no [index]: a run that was killed could"
                " not find its place in it. Give a dict of arrays, a list of examples, or an object with both"
            )
        self._count = len(next(iter(self._arrays.values()), given))
        if not self._count:
            raise DataError(f"{called} is empty: it has no example to learn from")
        self.spec = _spec(self._read(0))
        plain = (type(rows) in (np.ndarray, np.memmap) and rows.dtype.kind != "O" for rows in self._arrays.values())
        self._rows_are_checked = bool(self._arrays) and all(plain)
        """True if the data are a dict of NumPy arrays, none of dtype object. Then all rows have one shape and dtype."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        example = self._read(index)
        spec = _spec(example)
        if spec != self.spec:
            raise DataError(
                f"{self.called}: example {index:,} has {_in_words(spec)}, and the first one {_in_words(self.spec)}: a"
                " batch needs the same names, shapes and types. Pad or crop them to one"
            )
        return example

    def loader(self, *, batch_size: int, seed: int, shuffle: bool = True, prefetch: int = 2) -> Loader:
        in_memory = self._rows_are_checked and not any(isinstance(rows, np.memmap) for rows in self._arrays.values())
        if in_memory and batch_size * sum(rows.nbytes for rows in self._arrays.values()) <= HANDED_OVER * len(self):
            prefetch = 0
        return permuted(
            self._batch,
            len(self),
            batch_size=batch_size,
            seed=seed if shuffle else None,
            prefetch=prefetch,
            facts={"examples": len(self)},
        )

    def counted(self, batch_size: int) -> Iterator[Example]:
        for first in range(0, len(self), batch_size):
            count = min(batch_size, len(self) - first)
            yield filled_up(self._batch(first + np.arange(count)), count, batch_size)

    def _batch(self, indices: np.ndarray) -> Example:
        """Returns the batch of the examples with these indices. Rows of plain arrays are read in one call."""
        if self._rows_are_checked:
            try:
                return {
                    str(name): narrowed(rows.take(indices, axis=0), self.called) for name, rows in self._arrays.items()
                }
            except DataError:  # a number is too large: reading one by one finds its example
                pass
        examples = [self[index] for index in indices.tolist()]
        return {name: np.stack([example[name] for example in examples]) for name in examples[0]}

    def _read(self, index: int) -> Example:
        try:
            arrays = self._arrays
            example = {name: rows[index] for name, rows in arrays.items()} if arrays else self._given[index]
        except PlimsollError:
            raise
        except Exception as problem:
            if self._failure is None:
                raise
            raise self._failure(f"{self.called}: example {index:,} could not be read", problem) from problem
        if not isinstance(example, Mapping) or not example:
            raise DataError(
                f"{self.called}: example {index:,} is a {type(example).__name__}: it must be a dict of arrays, like"
                ' {"x": ..., "y": ...}; the loss gets a batch with the same names'
            )
        if COUNTED in example:
            raise DataError(f"{self.called}: the name {COUNTED!r} is taken by evaluation: choose another name")
        return {
            str(name): narrowed(value, f"{self.called}: {name!r} of example {index:,}")
            for name, value in example.items()
        }

    def held_bytes(self, *, training: bool) -> int:
        """Returns the bytes of memory-mapped arrays, whose pages become resident, and of the order used in training."""
        mapped = sum(array.nbytes for array in self._arrays.values() if isinstance(array, np.memmap))
        return mapped + (order_bytes(len(self)) if training else 0)


def _arrays_of_one_length(given: Mapping[str, Any], called: str) -> dict[str, np.ndarray]:
    arrays = {name: np.asanyarray(value) for name, value in given.items()}  # a memory map stays one
    sizes = {name: f"{len(value):,}" if value.ndim else "no rows" for name, value in arrays.items()}
    if len(set(sizes.values())) != 1 or "no rows" in sizes.values():
        lengths = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(
            f"{called} is a dict of arrays of unequal lengths ({lengths or 'it has none'}): their first axis"
            " counts the examples"
        )
    return arrays


def filled_up(batch: Example, count: int, batch_size: int) -> Example:
    """Pads a batch of `count` examples to `batch_size` by its last one. Adds an array `COUNTED`, False for padding."""
    if count < batch_size:
        rows = np.minimum(np.arange(batch_size), count - 1)
        batch = {name: values[rows] for name, values in batch.items()}
    return batch | {COUNTED: np.arange(batch_size) < count}


def _spec(example: Example) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (value.shape, value.dtype.name) for name, value in example.items()}


def _in_words(spec: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{name} {dtype}{list(shape) if shape else ''}" for name, (shape, dtype) in spec.items())


def narrow(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which JAX stores numbers of this dtype: 64 bits become 32."""
    return _NARROW.get(dtype, dtype)


def narrowed(value: Any, words: str) -> np.ndarray:
    """Returns `value` as an array of the dtype that `narrow` gives. `words` names the value in error messages."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        kind = f"a {type(value).__name__}" if not isinstance(value, np.ndarray) else f"an array of {array.dtype}"
        raise DataError(f"{words} is {kind}, not numbers")
    dtype = narrow(array.dtype)
    if dtype == array.dtype:
        return array
    if array.dtype.kind in "iu" and array.size and not np.can_cast(np.min_scalar_type(array.max()), dtype):
        raise DataError(
            f"{words} has {array.max():,}, and the largest that a {dtype.name} holds is {np.iinfo(dtype).max:,}"
        )
    return array.astype(dtype)
