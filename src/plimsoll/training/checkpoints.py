"""Checkpoints: Orbax writes and reads the arrays, and a manifest of hashes shows whether they are undamaged.

    checkpoints/step-00000600/
        state/           Orbax; each process writes its own shards
        position.json    position of the data loader, the plan, and shapes and dtypes of the arrays
        manifest.json    SHA-256 of every file above, written last

Orbax commits `state` by a rename, but loads flipped bits without an error. A checkpoint without a manifest was never
finished, and is removed. A checkpoint that differs from its manifest is set aside, and the previous checkpoint is used.
Saving in the background lets XLA keep a second copy of the state until it is written. The planner counts that copy.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.errors import CheckpointError, StoppedError
from plimsoll.files.folder import is_full
from plimsoll.files.manifest import MANIFEST, damage, finish, flush_folder, is_finished, remove, replace_file
from plimsoll.files.run_folder import POSITION, STEP, Position, RunFolder
from plimsoll.training import allocator, distributed
from plimsoll.training.disk import KEPT
from plimsoll.training.fingerprint import require_finite
from plimsoll.training.initial_weights import copied
from plimsoll.units import MIB, format_bytes

WRITTEN_BYTES, READ_BYTES = 64 * MIB, 16 * MIB
"""Limits on the bytes that Orbax writes or reads concurrently. A larger shard raises the limit. Orbax holds bytes twice
while it reads them."""
STATE = "state"
"""Name of the folder in a checkpoint to which Orbax writes the arrays."""
FROZEN = "['params']['frozen']"
"""Path of the frozen weights in a state."""
DISK_IS_FULL = ("No space left", "RESOURCE_EXHAUSTED", "Disk quota", "ENOSPC")
"""Substrings of error messages of Orbax and TensorStore about a full disk."""
ON_DISK: Any = ...
"""Orbax's placeholder for an array that is not loaded."""


@dataclass(frozen=True)
class Loaded:
    """Loaded checkpoint: the state, and the position of the data loader."""

    state: Any
    position: Position


class Checkpoints:
    """The checkpoints of one run, in a folder that all of its processes share.

    Every process calls `save` and `newest` at the same step. Use it as a context manager, which waits at its end for a
    save in the background.

    Args:
        folder: The run folder.
        in_background: Return from `save` before the checkpoint is written.
        frozen: Include frozen weights. False if the recipe reads them from other files (`Hints.frozen_given`).
        plan: The plan's levers, as in plan.json.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        in_background: bool,
        frozen: bool = True,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.in_background = in_background
        self.frozen = frozen
        self.plan = dict(plan or {})
        self.best_step: int | None = None
        """Step of the best evaluation so far. Its checkpoint is kept in addition to the newest ones."""
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self._thread.shutdown()

    def save(self, step: int, state: Any, loader: dict[str, Any]) -> None:
        """Saves a checkpoint, after the previous save is on disk.

        Args:
            step: Number of updates that the state has had.
            state: The state.
            loader: Position of the data loader, as `types.Source.state` returns it.

        Raises:
            StoppedError: The state has a NaN or an infinity, or cannot be written.
        """
        self.wait()
        leaves = leaves_of(state if self.frozen else without_frozen(state))
        require_finite(leaves, step)
        position = Position(step, loader, self.plan, [description(path, leaf) for path, leaf in leaves])

        # Orbax keeps references to the buffers until they are written, so training may donate the state.
        folder = self.folder.checkpoint(step)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            response = begin_save(folder / STATE, leaves)
        except Exception as problem:
            raise not_saved(self.folder, step, problem) from problem
        if self.in_background:
            self._pending = self._thread.submit(self._finish, response, position)
        else:
            self._finish(response, position)

    def _finish(self, response: Any, position: Position) -> None:
        """Waits until Orbax has written the state, then writes position and manifest, and removes old checkpoints."""
        try:
            response.result()
            if distributed.process() == 0:
                folder = self.folder.checkpoint(position.step)
                replace_file(folder / POSITION, json.dumps(asdict(position)))
                finish(folder)
                flush_folder(folder.parent)
                self._remove_old()
        except Exception as problem:
            raise not_saved(self.folder, position.step, problem) from problem

    def _remove_old(self) -> None:
        """Removes all but the newest checkpoints and the best one."""
        steps = self.folder.saved_steps()
        kept = {*steps[-KEPT:], self.best_step}
        for step in steps:
            if step not in kept:
                remove(self.folder.checkpoint(step))

    def wait(self) -> None:
        """Waits until the last save is on disk, and raises the error of a failed save."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def newest(self, like: Any) -> tuple[Loaded | None, list[str]]:
        """Loads the newest undamaged checkpoint onto the devices of `like`. Other devices may have saved it.

        Args:
            like: A state, or its shapes with shardings. If `self.frozen` is False, its frozen weights are not loaded.

        Returns:
            The checkpoint, None if there is none; and a note about each newer checkpoint, which was damaged or
            unfinished.
        """
        step, notes = distributed.of_first("newest", self._newest_whole)
        if step is None:
            return None, notes
        folder = self.folder.checkpoint(step)
        state = load_arrays(folder, like if self.frozen else without_frozen(like))
        if jax.default_backend() == "cpu":
            state = jax.tree.map(owned, state)
        return Loaded(state, self.folder.position(step)), notes

    def _newest_whole(self) -> tuple[int | None, list[str]]:
        """Returns the step of the newest undamaged checkpoint or None, and a note about each newer one."""
        notes = []

        # Remove checkpoints without a manifest: a process was killed while it wrote or removed them.
        newest = max(self.folder.saved_steps(), default=0)
        for folder in sorted(self.folder.checkpoints.glob(f"{STEP}*")):
            number = folder.name.removeprefix(STEP)
            if not number.isdigit() or is_finished(folder):
                continue
            if int(number) > newest and (folder / POSITION).exists():
                notes.append(f"checkpoint {int(number)} has no {MANIFEST}, so it is incomplete: removed")
            remove(folder)

        # Set damaged checkpoints aside, newest first, until one is undamaged.
        for step in reversed(self.folder.saved_steps()):
            problem = damage(self.folder.checkpoint(step))
            if problem is None:
                return step, notes
            aside = set_aside(self.folder.checkpoint(step))
            notes.append(f"checkpoint {step} is damaged ({problem}): set aside as {aside.name}")
        return None, notes


def begin_save(folder: Path, leaves: Sequence[tuple[str, Any]]) -> Any:
    """Starts writing arrays into a folder, and returns Orbax's response to wait on. Leaves out arrays without elements.

    Args:
        folder: New folder.
        leaves: For each leaf, its path in the state and its array.
    """
    from orbax.checkpoint import v1 as ocp

    arrays = {path: leaf for path, leaf in leaves if leaf.size}
    with orbax_options(arrays.values()):
        return ocp.save_async(str(folder.absolute()), arrays)


def load_arrays(folder: Path, like: Any, *, only: str | tuple[str, ...] = "") -> Any:
    """Loads arrays of a checkpoint into a tree like `like`.

    For a trained model `only="['params']"` is enough: the optimizer's state, twice as large, is then not read.

    Args:
        folder: Folder of the checkpoint.
        like: Tree of shapes and dtypes. A leaf without a sharding is loaded onto the first device.
        only: Prefixes of the leaves' paths in `like`.

    Raises:
        CheckpointError: The checkpoint has other arrays, shapes or dtypes than `like`.
    """
    wanted = dict(leaves_of(like))
    require_fitting(folder, wanted, only=only)
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = {path: getattr(leaf, "sharding", None) or first for path, leaf in wanted.items()}

    # Arrays without elements are not in the checkpoint: create them.
    shapes = {
        path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[path])
        for path, leaf in wanted.items()
        if prod(leaf.shape)
    }
    loaded = read_arrays(folder, shapes)
    for path, leaf in wanted.items():
        if path not in loaded:
            loaded[path] = jax.device_put(np.zeros(leaf.shape, leaf.dtype), shardings[path])
    return jax.tree.unflatten(jax.tree.structure(like), [loaded[path] for path in wanted])


def read_leaves(folder: Path, *, only: str | tuple[str, ...] = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yields path and array of each leaf whose path begins with `only`, in the order of the state. Loads one by one."""
    for path, shape, dtype in Position.read(folder).leaves:
        if path.startswith(only):
            leaf = np.zeros(shape, jnp.dtype(dtype))
            yield path, read_arrays(folder, {path: leaf})[path] if leaf.size else leaf


def read_arrays(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Reads some arrays of a checkpoint.

    Args:
        folder: Folder of the checkpoint.
        wanted: Map from paths in the state to templates: NumPy arrays to read NumPy arrays, or shapes with a sharding
            to read JAX arrays.
    """
    from orbax.checkpoint import v1 as ocp

    saved = {path: ON_DISK for path, shape, _ in Position.read(folder).leaves if prod(shape)}
    with orbax_options(wanted.values()):
        arrays = ocp.load(str((folder / STATE).absolute()), saved | dict(wanted))
    return {path: arrays[path] for path in wanted}


def require_fitting(folder: Path, wanted: Mapping[str, Any], *, only: str | tuple[str, ...] = "") -> None:
    """Raises CheckpointError if paths, shapes or dtypes of a checkpoint's arrays differ from `wanted`.

    Args:
        folder: Folder of the checkpoint.
        wanted: Map from a path in the state to an array or a shape.
        only: Prefixes of the checkpoint's paths to compare. `wanted` must hold no other paths.
    """
    position = Position.read(folder)
    saved = {path: (tuple(shape), dtype) for path, shape, dtype in position.leaves if path.startswith(only)}
    here = {path: (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in wanted.items()}
    for path in [*saved, *here]:
        if saved.get(path) != here.get(path):
            raise CheckpointError(
                f"checkpoint {position.step} does not fit the recipe: {path} is {saved.get(path)} there and"
                f" {here.get(path)} here. Name another --run to start anew"
            )


def orbax_options(arrays: Iterable[Any]) -> Any:
    """Returns Orbax options for these arrays: no compression, and few bytes in memory at a time."""
    from orbax.checkpoint import v1 as ocp

    silence_tracebacks()
    largest = max(map(shard_bytes, arrays), default=0)

    options = ocp.Context()
    options.async_options.create_directories_asynchronously = False  # if it failed, threads would wait 300 s
    options.array.saving.use_compression = False  # compressing copies all bytes
    options.array.saving.use_replica_parallel = False  # each process would copy its share
    options.memory.write_concurrent_bytes = max(WRITTEN_BYTES, largest + 1)  # a shard is written and read in one piece
    options.memory.read_concurrent_bytes = max(READ_BYTES, largest + 1)
    return options


def shard_bytes(array: Any) -> int:
    """Returns the bytes of an array's shard on one device; of a NumPy array, all its bytes."""
    sharding = getattr(array, "sharding", None)
    shape = array.shape if sharding is None else sharding.shard_shape(array.shape)
    return prod(shape) * array.dtype.itemsize


@cache
def silence_tracebacks() -> None:
    """Keeps Orbax from printing a traceback for every thread of a failed write, whose error is raised anyway."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    # Silences later warnings: coroutines never awaited, and TensorStore's callbacks that find the event loop closed.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    report = sys.unraisablehook

    def report_others(event: Any) -> None:
        if str(event.exc_value) != "Event loop is closed":
            report(event)

    sys.unraisablehook = report_others


def owned(array: jax.Array) -> jax.Array:
    """Returns a copy of an array in memory that JAX allocated, and deletes the original.

    Orbax may return arrays in NumPy's memory, which cannot be donated.
    """
    copy = copied(array, array.sharding)
    array.delete()
    return copy


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """Returns path and leaf of each leaf of a tree, in the tree's order."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def description(path: str, leaf: Any) -> tuple[str, list[int], str]:
    """Returns path, shape and dtype of a leaf, as position.json lists them."""
    return path, list(leaf.shape), str(leaf.dtype)


def without_frozen(state: Any) -> Any:
    """Returns the state without its frozen weights."""
    params = {name: part for name, part in state["params"].items() if name != "frozen"}
    return state | {"params": params}


def set_aside(folder: Path) -> Path:
    """Renames a damaged checkpoint to a name that is still free, and returns its new path."""
    names = (f"damaged-{folder.name}-{number}" for number in itertools.count(1))
    aside = next(path for name in names if not (path := folder.with_name(name)).exists())
    return folder.rename(aside)


def not_saved(run: RunFolder, step: int, problem: Exception) -> Exception:
    """Removes the unfinished checkpoint of a failed save, and returns the error to raise.

    Returns:
        A StoppedError if the disk is full or cannot be written to, else `problem`.
    """
    remove(run.checkpoint(step))
    if allocator.refused(problem):  # JAX out of memory: RESOURCE_EXHAUSTED is not about the disk here
        return problem
    full = any(words in str(problem) for words in DISK_IS_FULL)
    if isinstance(problem, OSError):
        full = full or is_full(problem)
    elif not full:
        return problem

    # The message names the free bytes, the newest checkpoint, and the way to continue.
    free = format_bytes(shutil.disk_usage(run.checkpoints).free)
    reason = f"the disk is full ({free} free)" if full else str(problem).rstrip(".")
    advice = "make room, and run" if full else "run"
    before = max(run.saved_steps(), default=None)
    earlier = "There is no earlier checkpoint" if before is None else f"The checkpoint of step {before} is whole"
    return StoppedError(
        f"step {step} could not be saved in {run.checkpoints}: {reason}. {earlier}; {advice} the same command again to"
        " continue"
    )
