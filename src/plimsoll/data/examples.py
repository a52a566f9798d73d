"""A data set of the user's own: anything with `len()` and `[index]`, every example checked against the first.

    data = {"x": images, "y": labels}      # arrays of one length: example i is their i-th rows
    data = MyImages("photos/")             # data[i] is a dict of arrays, numbers or booleans; len(data)

An index is what makes a run continue exactly: a generator has none, and is refused. 64-bit numbers become 32-bit ones,
as everywhere in JAX; whole numbers that do not fit are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from plimsoll.data.batch_source import BatchSource
from plimsoll.data.permuted import Permuted
from plimsoll.errors import DataError, PlimsollError
from plimsoll.types import COUNTED

Example = dict[str, np.ndarray]

_NARROW = {"float64": np.float32, "complex128": np.complex64, "int64": np.int32, "uint64": np.uint32}


@runtime_checkable
class ExampleSet(Protocol):
    """Examples of one shape each: arrays and sequences (below), or an HDF5 file (`hdf5_set.Hdf5`)."""

    called: str

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Name to the shape and dtype of one example."""
        ...

    def __len__(self) -> int: ...

    def loader(self, *, batch_size: int, seed: int, shuffle: bool, prefetch: int) -> BatchSource:
        """Batches without end."""
        ...

    def counted(self, batch_size: int) -> Iterator[Example]:
        """Batches with every example once."""
        ...

    @property
    def warning(self) -> str | None:
        """What is worth saying before it is read."""
        ...

    def held_bytes(self, *, training: bool) -> int:
        """What it comes to hold while it is trained or evaluated on, and a rehearsal that only opens it does not."""
        ...


class Examples(Sequence[Example]):
    """`given` with one shape and dtype for each name; `called` is what a refusal calls it, and `told` makes one of what
    the user's own code raises."""

    def __init__(self, given: Any, *, called: str, told: Callable[[str, Exception], Exception] | None = None) -> None:
        self.called = called
        self._told = told
        self._rows = _Rows(given, called) if isinstance(given, Mapping) else given
        if not hasattr(self._rows, "__len__") or not hasattr(self._rows, "__getitem__"):
            raise DataError(
                f"{called} is {_kind(given)}, which has no len() and no [index]: a run that was killed could not find"
                " its place in it. Give a dict of arrays, a list of examples, or an object with both"
            )
        self._count = len(self._rows)
        if not self._count:
            raise DataError(f"{called} is empty: it has no example to learn from")
        self.spec = {name: (value.shape, value.dtype.name) for name, value in self._read(0).items()}
        """Name to the shape and dtype of one example."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        example = self._read(index)
        if example.keys() != self.spec.keys():
            raise DataError(
                f"{self.called}: example {index:,} has {', '.join(example)}, the first one {', '.join(self.spec)}:"
                " every example needs the same names"
            )
        for name, value in example.items():
            shape, dtype = self.spec[name]
            if value.shape != shape or value.dtype != dtype:
                raise DataError(
                    f"{self.called}: {name!r} of example {index:,} is {_words(value.shape, value.dtype.name)}, of the"
                    f" first one {_words(shape, dtype)}: a batch needs one shape. Pad or crop them to one"
                )
        return example

    def loader(self, *, batch_size: int, seed: int, shuffle: bool, prefetch: int) -> BatchSource:
        return example_loader(self, batch_size=batch_size, seed=seed, shuffle=shuffle, prefetch=prefetch)

    def counted(self, batch_size: int) -> Iterator[Example]:
        return counted_batches(self, batch_size=batch_size)

    def _read(self, index: int) -> Example:
        try:
            example = self._rows[index]
        except PlimsollError:
            raise
        except Exception as problem:
            if self._told is None:
                raise
            raise self._told(f"{self.called}: example {index:,} could not be read", problem) from problem
        if not isinstance(example, Mapping) or not example:
            raise DataError(
                f"{self.called}: example {index:,} is {_kind(example)}: it must be a dict of arrays, like"
                ' {"x": ..., "y": ...}; the loss gets a batch with the same names'
            )
        if COUNTED in example:
            raise DataError(f"{self.called}: the name {COUNTED!r} is taken, evaluation uses it: choose another")
        return {
            str(name): narrowed(value, f"{self.called}: {name!r} of example {index:,}")
            for name, value in example.items()
        }

    warning: str | None = None

    def held_bytes(self, *, training: bool) -> int:
        """Of arrays on disk: a rehearsal does not read them, and training brings them into the resident set."""
        return self._rows.mapped_bytes if isinstance(self._rows, _Rows) else 0


class _Rows(Sequence[dict[str, Any]]):
    """Arrays of one length as a sequence of their rows."""

    def __init__(self, arrays: Mapping[str, Any], called: str) -> None:
        self._arrays = {name: np.asanyarray(value) for name, value in arrays.items()}  # a memory map stays one
        lengths = {name: len(value) if value.ndim else None for name, value in self._arrays.items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            words = ", ".join(f"{name} {'no rows' if size is None else f'{size:,}'}" for name, size in lengths.items())
            raise DataError(
                f"{called} is a dict of arrays of unequal lengths ({words or 'it has none'}): their first axis counts"
                " the examples"
            )
        self._count = next(iter(lengths.values())) or 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return {name: value[index] for name, value in self._arrays.items()}

    @property
    def mapped_bytes(self) -> int:
        return sum(value.nbytes for value in self._arrays.values() if isinstance(value, np.memmap))


def narrowed(value: Any, words: str) -> np.ndarray:
    """Numbers as JAX has them: 64 bits become 32. `words` say what `value` is, where it is refused."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        kind = _kind(value) if not isinstance(value, np.ndarray) else f"an array of {array.dtype}"
        raise DataError(f"{words} is {kind}, not numbers")
    narrow = _NARROW.get(array.dtype.name)
    if narrow is None:
        return array
    if array.dtype.kind in "iu" and array.size and not np.can_cast(np.min_scalar_type(array.max()), narrow):
        raise DataError(
            f"{words} has {array.max():,}, and the largest that a {np.dtype(narrow).name} holds is"
            f" {np.iinfo(narrow).max:,}"
        )
    return array.astype(narrow)


def example_loader(
    examples: Examples, *, batch_size: int, seed: int, shuffle: bool = True, prefetch: int = 2
) -> BatchSource:
    """Batches without end. No example is dropped: a batch may hold the end of one epoch and the start of the next."""
    drawn = Permuted(examples, size={"examples": len(examples)}, seed=seed if shuffle else None)
    batches: grain.IterDataset = drawn.batch(batch_size, drop_remainder=True, batch_fn=_together)
    if prefetch:
        batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
    return BatchSource(batches)


def counted_batches(examples: Examples, *, batch_size: int) -> Iterator[Example]:
    """Every example once, in order. The last batch is filled up with copies which `COUNTED` says not to count."""
    for first in range(0, len(examples), batch_size):
        rows = [examples[index] for index in range(first, min(first + batch_size, len(examples)))]
        counted = np.arange(batch_size) < len(rows)
        rows += rows[-1:] * (batch_size - len(rows))
        yield _together(rows) | {COUNTED: counted}


def _together(examples: Sequence[Example]) -> Example:
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _words(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype} of shape {shape}" if shape else f"one {dtype}"
