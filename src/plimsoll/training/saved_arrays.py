"""Arrays on disk: Orbax writes and reads them in pieces, as wholes or in the parts that several processes hold.

A part is a range on each axis of an array. The pieces of a part are consecutive numbers of it, at most SLICE_BYTES, so
that writing and reading take tens of MiB whatever its size: `PATH#0`, `PATH#1` of a whole array, `PATH@2#0` of the
third part of one that is split.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plimsoll.levers.sharding import unaligned_empty
from plimsoll.training import distributed
from plimsoll.units import MIB

SLICE_BYTES = 4 * MIB
BLOCK_BYTES = 16 * MIB
"""Bytes of a part that are read at a time where only some of it is wanted."""
IN_FLIGHT_BYTES = 8 * MIB
"""Bytes that Orbax may hold at a time while it writes or reads."""
_ON_DISK: Any = ...  # Orbax's word for "leave this one there"

Part = tuple[tuple[int, int], ...]
"""First place on each axis, and the place after the last one."""


@dataclass(frozen=True)
class SavedPart:
    """Part of an array, and the process that saves it."""

    process: int
    part: Part


def saved_parts(leaves: Iterable[tuple[str, jax.Array]]) -> dict[str, list[SavedPart]]:
    """Returns the parts of each array, each with one of the processes that hold it: that with least to save so far.

    It is the same on every process, which do not have to ask one another.
    """
    busy: Counter[int] = Counter()
    found: dict[str, list[SavedPart]] = {}
    for path, leaf in leaves:
        found[path] = []
        for part, processes in holders(leaf):
            process = min(processes, key=lambda process: (busy[process], process))
            busy[process] += prod(size_of(part)) * leaf.dtype.itemsize
            found[path].append(SavedPart(process, part))
    return found


def holders(leaf: Any) -> list[tuple[Part, set[int]]]:
    """Returns the parts of an array by its sharding, in their order, each with the processes that hold it."""
    found: dict[Part, set[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        found.setdefault(part_of(index, leaf.shape), set()).add(device.process_index)
    return sorted(found.items())


def part_of(index: Sequence[slice], shape: Sequence[int]) -> Part:
    """Returns the part that slices of every axis stand for."""
    ranges = (of_axis.indices(size) for of_axis, size in zip(index, shape, strict=True))
    return tuple((first, end) for first, end, _ in ranges)


def size_of(part: Part) -> tuple[int, ...]:
    """Returns the shape of a part."""
    return tuple(end - first for first, end in part)


def own_parts(
    leaves: Iterable[tuple[str, jax.Array]], parts: Mapping[str, Sequence[SavedPart]]
) -> list[tuple[str, np.ndarray]]:
    """Returns the names and values of the parts that this process saves; of a CPU's arrays the very memory."""
    own: list[tuple[str, np.ndarray]] = []
    for path, leaf in leaves:
        held = {part_of(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards}
        own += [
            (_part_name(path, number), np.asarray(held[saved.part]))
            for number, saved in enumerate(parts[path])
            if saved.process == distributed.process()
        ]
    return own


def description(path: str, leaf: Any, parts: Iterable[SavedPart] | None = None) -> dict[str, Any]:
    """Returns what `SavedArrays` has to know of a leaf, whole or in parts."""
    of_parts = {} if parts is None else {"parts": [[each.process, each.part] for each in parts]}
    return {"path": path, "shape": list(leaf.shape), "dtype": str(leaf.dtype)} | of_parts


def folder_of(process: int) -> str:
    """Returns the folder, within a checkpoint, of the parts that a process saves."""
    return f"process-{process:05d}/arrays"


def _part_name(path: str, number: int) -> str:
    return f"{path}@{number}"


def cut(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the pieces of arrays, by the names that `names_of` gives them."""
    return {f"{name}#{index}": piece for name, array in arrays for index, piece in enumerate(pieces(array))}


def pieces(array: np.ndarray) -> list[np.ndarray]:
    """Returns views of at most SLICE_BYTES of the flattened array."""
    flat, length = array.reshape(-1), _piece_length(array.dtype)
    return [flat[start : start + length] for start in range(0, flat.size, length)]


def names_of(name: str, shape: Sequence[int], dtype: Any) -> list[str]:
    """Returns the names of the pieces of an array or a part of this shape."""
    return [f"{name}#{index}" for index in range(-(-prod(shape) // _piece_length(np.dtype(dtype))))]


def _piece_length(dtype: np.dtype[Any]) -> int:
    return max(1, SLICE_BYTES // dtype.itemsize)


def on_host(arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Returns arrays as JAX' over the same memory: Orbax copies NumPy's, all at once, whatever the limits say."""
    host = jax.local_devices(backend="cpu")[0]
    return {name: jax.device_put(piece, host) for name, piece in arrays.items()}


def write(path: Path, arrays: Mapping[str, jax.Array]) -> None:
    """Writes pieces into a folder."""
    from orbax.checkpoint import v1 as ocp

    with _context(), distributed.alone():
        ocp.save(str(path), arrays)


def start_writing(path: Path, arrays: Mapping[str, np.ndarray], *, in_background: bool) -> Callable[[], Any]:
    """Starts to write pieces into a folder, and returns what waits until all are there."""
    from orbax.checkpoint import v1 as ocp

    if not in_background:
        write(path, on_host(arrays))
        return lambda: None
    with _context():
        return ocp.save_async(str(path), on_host(arrays)).result


class Reader:
    """Pieces in a folder of Orbax's.

    Args:
        path: The folder.
        names: All pieces in it.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self.path, self._left = path, dict.fromkeys(names, _ON_DISK)

    def __call__(self, wanted: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns some of them. `wanted` has an array of the shape and type of each."""
        from orbax.checkpoint import v1 as ocp

        with _context(), distributed.alone():
            return ocp.load(str(self.path), self._left | dict(wanted))


class SavedArrays:
    """Leaves of a checkpoint.

    Args:
        folder: Of the checkpoint.
        leaves: The `description` of every leaf.
    """

    def __init__(self, folder: Path, leaves: Iterable[Mapping[str, Any]]) -> None:
        names: dict[str, list[str]] = {}
        for leaf in leaves:
            for inside, name, shape in _places(leaf):
                names.setdefault(inside, []).extend(names_of(name, shape, leaf["dtype"]))
        self._readers = {inside: Reader(folder / inside, of_folder) for inside, of_folder in names.items()}

    def read(self, leaf: Mapping[str, Any], wanted: Part | None = None) -> np.ndarray:
        """Returns a leaf, or part of it."""
        gc.collect(1)  # what Orbax has read of the leaf before stays in cycles of references, as large as that leaf
        places, whole = _places(leaf), tuple((0, size) for size in leaf["shape"])
        if "parts" not in leaf and wanted in (None, whole):
            folder, name, shape = places[0]
            return read_whole(self._readers[folder], name, shape, leaf["dtype"])

        def read(number: int, within: Part, out: np.ndarray) -> None:
            folder, name, shape = places[number]
            read_within(self._readers[folder], name, shape, within, out)

        return read_part(whole if wanted is None else wanted, _parts(leaf), leaf["dtype"], read)


def _places(leaf: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Returns the folder, the name and the shape of each part of a leaf."""
    if "parts" not in leaf:
        return [("arrays", leaf["path"], tuple(leaf["shape"]))]
    return [
        (folder_of(each.process), _part_name(leaf["path"], number), size_of(each.part))
        for number, each in enumerate(_parts(leaf))
    ]


def _parts(leaf: Mapping[str, Any]) -> list[SavedPart]:
    if "parts" not in leaf:
        return [SavedPart(0, tuple((0, size) for size in leaf["shape"]))]
    return [SavedPart(process, tuple(map(tuple, part))) for process, part in leaf["parts"]]


def read_whole(reader: Reader, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns an array or a part as it was saved."""
    whole = unaligned_empty(shape, dtype)
    parts = dict(zip(names_of(name, shape, dtype), pieces(whole), strict=True))
    read = reader({piece: np.empty_like(values) for piece, values in parts.items()})
    for piece, values in parts.items():
        values[...] = read[piece]
    return whole


def read_within(reader: Reader, name: str, shape: Sequence[int], within: Part, out: np.ndarray) -> None:
    """Reads some of an array or a part into `out`, BLOCK_BYTES at a time.

    Args:
        reader: The folder it was saved in.
        name: Of the array or part.
        shape: Its shape as it was saved.
        within: What is wanted of it.
        out: Where it goes, of the shape of `within`.
    """
    length, names = _piece_length(out.dtype), names_of(name, shape, out.dtype)
    total = prod(shape)

    def flat(first: int, end: int) -> np.ndarray:
        numbers = range(first // length, -(-end // length))
        wanted = {names[at]: np.empty(min(length, total - at * length), out.dtype) for at in numbers}
        read = reader(wanted)
        start = first - numbers.start * length
        return np.concatenate([read[piece] for piece in wanted])[start : start + end - first]

    def fill(shape: Sequence[int], base: int, within: Part, out: np.ndarray) -> None:
        (first, end), row = within[0], prod(shape[1:])
        if len(shape) > 1 and row * out.itemsize > BLOCK_BYTES:
            for at in range(first, end):
                fill(shape[1:], base + at * row, within[1:], out[at - first])
            return
        rows = max(1, BLOCK_BYTES // (row * out.itemsize))
        for at in range(first, end, rows):
            count = min(rows, end - at)
            block = flat(base + at * row, base + (at + count) * row).reshape(count, *shape[1:])
            out[at - first : at - first + count] = block[(slice(None), *(slice(*each) for each in within[1:]))]

    if not shape:
        shape, within, out = (1,), ((0, 1),), out.reshape(1)
    if out.size:
        fill(shape, 0, within, out)


def read_part(
    wanted: Part, parts: Sequence[SavedPart], dtype: Any, read: Callable[[int, Part, np.ndarray], None]
) -> np.ndarray:
    """Returns any part of an array that was saved in parts.

    Args:
        wanted: What is wanted of the array.
        parts: Those that were saved.
        dtype: Of the array.
        read: Reads what stands in the given range of a part, by its number, into an array.
    """
    out = unaligned_empty(size_of(wanted), dtype)
    for number, saved in enumerate(parts):
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, saved.part, strict=True))
        if any(first >= end for first, end in common):
            continue
        inside = tuple((a - c, b - c) for (a, b), (c, _) in zip(common, saved.part, strict=True))
        there = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, wanted, strict=True))
        target = out[there] if wanted else out
        read(number, inside, target)
    return out


def _context() -> Any:
    from orbax.checkpoint import v1 as ocp

    _silence_tracebacks()
    context = ocp.Context()
    context.multiprocessing.primary_host = None  # of several processes each writes a folder of its own
    context.array.saving.use_replica_parallel = False  # which that excludes; a piece is on one device
    context.memory.write_concurrent_bytes = IN_FLIGHT_BYTES
    context.memory.read_concurrent_bytes = IN_FLIGHT_BYTES
    context.memory.transfer_concurrent_bytes = IN_FLIGHT_BYTES
    return context


starved = False
"""Whether a thread had no memory to begin with: Orbax and Python then wait for it for ever."""


@cache
def _silence_tracebacks() -> None:
    """Keeps Orbax and TensorStore from printing tracebacks of a write that fails: its error is raised, once.

    On a full disk they log every thread's traceback. Their callbacks then meet an event loop that is closed, which the
    interpreter reports through `sys.unraisablehook`, hundreds of times over.
    """
    for name in ("absl", "asyncio"):  # loggers of Orbax and TensorStore
        logging.getLogger(name).setLevel(logging.CRITICAL)
    report = sys.unraisablehook

    def report_others(event: Any) -> None:
        global starved
        if event.exc_type is MemoryError:  # nothing else may be done here: that needs memory
            starved = True
        elif not (isinstance(event.exc_value, RuntimeError) and str(event.exc_value) == "Event loop is closed"):
            report(event)

    sys.unraisablehook = report_others
