"""Checkpoints: Orbax writes and reads the arrays, and a manifest tells whether they are still whole.

    checkpoints/step-00000600/
        state/           Orbax; each process writes the shards that it holds
        position.json    where the data goes on, the plan, and shapes and dtypes of the arrays
        manifest.json    SHA-256 of every file above, written last

Orbax commits `state` by a rename, but loads a flipped bit without a word. A checkpoint without a manifest was never
finished, and is removed. One whose files differ from its manifest is set aside, and the one before it is used.
Saving beside training lets XLA keep a second copy of the state until it is written; the planner counts it.
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
"""Bytes that Orbax writes or reads at the same time, unless one shard has more. What it reads is held twice."""
STATE = "state"
FROZEN = "['params']['frozen']"
"""Where a state keeps its frozen weights."""
DISK_IS_FULL = ("No space left", "RESOURCE_EXHAUSTED", "Disk quota", "ENOSPC")
"""Words of Orbax and TensorStore about a full disk."""
ON_DISK: Any = ...
"""Orbax's word for an array that is not to be read."""


@dataclass(frozen=True)
class Loaded:
    """What a run goes on from."""

    state: Any
    position: Position


class Checkpoints:
    """The checkpoints of one run, in a folder that all of its processes see.

    Every process calls `save` and `newest`, at the same step. Use it as a context: a save that was begun is finished.

    Args:
        folder: The run's.
        in_background: Return from `save` while it is written.
        frozen: They hold frozen weights: not where a recipe reads them from elsewhere (`frozen_is_given`).
        plan: Levers by which it trains, as plan.json holds them.
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
        """Step of the best evaluation so far, whose checkpoint is kept besides the newest ones."""
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self._thread.shutdown()

    def save(self, step: int, state: Any, loader: dict[str, Any]) -> None:
        """Saves the state once the save before it is on disk.

        Raises:
            StoppedError: A number in the state is not finite, or it cannot be written.
        """
        self.wait()
        leaves = leaves_of(state if self.frozen else without_frozen(state))
        require_finite(leaves, step)
        position = Position(step, loader, self.plan, [description(path, leaf) for path, leaf in leaves])

        # Orbax keeps the arrays until they are written; training may overwrite its own.
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
        """Waits until Orbax has committed the state, and completes the checkpoint."""
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
        """Waits until the last save is on disk. Raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def newest(self, like: Any) -> tuple[Loaded | None, list[str]]:
        """Loads the newest checkpoint that is whole, onto the devices of `like`, whatever devices saved it.

        Args:
            like: A state, or its shapes with shardings. Without `frozen`, its frozen weights are not read.

        Returns:
            The checkpoint, None if none is whole; and a note about each newer one, which is set aside.
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
        notes = []

        # What was being written or removed when a process was killed.
        newest = max(self.folder.saved_steps(), default=0)
        for folder in sorted(self.folder.checkpoints.glob(f"{STEP}*")):
            number = folder.name.removeprefix(STEP)
            if not number.isdigit() or is_finished(folder):
                continue
            if int(number) > newest and (folder / POSITION).exists():
                notes.append(f"checkpoint {int(number)} has no {MANIFEST} to say that it is whole: removed")
            remove(folder)

        for step in reversed(self.folder.saved_steps()):
            problem = damage(self.folder.checkpoint(step))
            if problem is None:
                return step, notes
            aside = set_aside(self.folder.checkpoint(step))
            notes.append(f"checkpoint {step} is damaged ({problem}): set aside as {aside.name}")
        return None, notes


def begin_save(folder: Path, leaves: Sequence[tuple[str, Any]]) -> Any:
    """Begins to write arrays into a folder, and returns Orbax's response. Arrays without elements are left out."""
    from orbax.checkpoint import v1 as ocp

    arrays = {path: leaf for path, leaf in leaves if leaf.size}
    with orbax_options(arrays.values()):
        return ocp.save_async(str(folder.absolute()), arrays)


def load_arrays(folder: Path, like: Any, *, only: str | tuple[str, ...] = "") -> Any:
    """Loads arrays of a checkpoint in the shape of `like`.

    Using a trained model needs `only="['params']"`, and not the optimizer, which is twice as large.

    Args:
        folder: Of the checkpoint.
        like: Shapes and dtypes of what is wanted, and shardings, where it is not the first device.
        only: Beginnings of the paths that `like` has.

    Raises:
        CheckpointError: The shapes of the checkpoint are others.
    """
    wanted = dict(leaves_of(like))
    require_fitting(folder, wanted, only=only)
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = {path: getattr(leaf, "sharding", None) or first for path, leaf in wanted.items()}

    # Orbax writes no array without elements.
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
    """Yields path and array of every leaf under `only`, one in memory at a time, in the order of the state."""
    for path, shape, dtype in Position.read(folder).leaves:
        if path.startswith(only):
            leaf = np.zeros(shape, jnp.dtype(dtype))
            yield path, read_arrays(folder, {path: leaf})[path] if leaf.size else leaf


def read_arrays(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Reads some arrays of a checkpoint: as NumPy's, or with the shardings of the shapes that are wanted."""
    from orbax.checkpoint import v1 as ocp

    saved = {path: ON_DISK for path, shape, _ in Position.read(folder).leaves if prod(shape)}
    with orbax_options(wanted.values()):
        arrays = ocp.load(str((folder / STATE).absolute()), saved | dict(wanted))
    return {path: arrays[path] for path in wanted}


def require_fitting(folder: Path, wanted: Mapping[str, Any], *, only: str | tuple[str, ...] = "") -> None:
    """Raises CheckpointError where a checkpoint has other arrays than are wanted, or of other shapes."""
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
    """Returns Orbax's options: nothing is compressed, and little is in flight."""
    from orbax.checkpoint import v1 as ocp

    silence_tracebacks()
    largest = max(map(shard_bytes, arrays), default=0)

    options = ocp.Context()
    options.async_options.create_directories_asynchronously = False  # threads would wait 300 s for one that fails
    options.array.saving.use_compression = False  # compressed, it copies all that it writes
    options.array.saving.use_replica_parallel = False  # else each process copies its share
    options.memory.write_concurrent_bytes = max(WRITTEN_BYTES, largest + 1)  # a shard is written and read whole
    options.memory.read_concurrent_bytes = max(READ_BYTES, largest + 1)
    return options


def shard_bytes(array: Any) -> int:
    """Returns the bytes of an array that are on one device."""
    sharding = getattr(array, "sharding", None)
    shape = array.shape if sharding is None else sharding.shard_shape(array.shape)
    return prod(shape) * array.dtype.itemsize


@cache
def silence_tracebacks() -> None:
    """Keeps Orbax from printing a traceback for every thread of a write that fails: its error is raised, once."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    # What had not begun is never awaited, and callbacks of TensorStore meet an event loop that is closed.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    report = sys.unraisablehook

    def report_others(event: Any) -> None:
        if str(event.exc_value) != "Event loop is closed":
            report(event)

    sys.unraisablehook = report_others


def owned(array: jax.Array) -> jax.Array:
    """Returns an array in memory of JAX's own. Orbax's may be NumPy's, which cannot be donated."""
    copy = copied(array, array.sharding)
    array.delete()
    return copy


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a tree with their paths, in its order."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def description(path: str, leaf: Any) -> tuple[str, list[int], str]:
    """Returns path, shape and dtype of a leaf."""
    return path, list(leaf.shape), str(leaf.dtype)


def without_frozen(state: Any) -> Any:
    """Returns the state without its frozen weights."""
    params = {name: part for name, part in state["params"].items() if name != "frozen"}
    return state | {"params": params}


def set_aside(folder: Path) -> Path:
    """Renames a damaged checkpoint, and returns its new path. One that was set aside before stays."""
    names = (f"damaged-{folder.name}-{number}" for number in itertools.count(1))
    aside = next(path for name in names if not (path := folder.with_name(name)).exists())
    return folder.rename(aside)


def not_saved(run: RunFolder, step: int, problem: Exception) -> Exception:
    """Removes what was written of a checkpoint, and returns the error to raise.

    Returns:
        StoppedError about the disk, in a paragraph; any other problem as it is.
    """
    remove(run.checkpoint(step))
    if allocator.refused(problem):  # memory, not disk, under the same status
        return problem
    full = any(words in str(problem) for words in DISK_IS_FULL)
    if isinstance(problem, OSError):
        full = full or is_full(problem)
    elif not full:
        return problem

    # What the user can do: make room.
    free = format_bytes(shutil.disk_usage(run.checkpoints).free)
    reason = f"the disk is full ({free} free)" if full else str(problem).rstrip(".")
    advice = "make room, and run" if full else "run"
    before = max(run.saved_steps(), default=None)
    earlier = "There is no earlier checkpoint" if before is None else f"The checkpoint of step {before} is whole"
    return StoppedError(
        f"step {step} could not be saved in {run.checkpoints}: {reason}. {earlier}; {advice} the same command again to"
        " continue"
    )
