"""Checkpoints: Orbax writes the arrays in pieces, and a manifest of checksums tells whether they are still whole.

A checkpoint is a folder `step-00000600`. It appears all at once, by a rename, when everything in it is on disk:

    arrays/        Orbax; every leaf cut into pieces (training/saved_arrays.py), so that saving needs tens of MiB
    state.json     the leaves: path, shape, dtype; and the loader's position
    manifest.json  SHA-256 of every file above: a flipped bit would load silently otherwise

Where several processes see the folder, each writes what it holds: `process-00000/arrays/`, `process-00001/arrays/` and
so on, and of each leaf `state.json` has the parts, with the process that wrote them. The first one renames when all
have theirs. Any number of processes, on any devices, reads what it needs of either form.

Saving in the background lets XLA keep a second copy of the state until it is written; the planner counts it.
A damaged checkpoint is set aside, and the one before it is used.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plimsoll.errors import CheckpointError, StoppedError, ended_by_memory
from plimsoll.files.contents import content_of
from plimsoll.files.manifest import replace_file
from plimsoll.training import allocator, distributed, saved_arrays
from plimsoll.training.crossing import Crossing
from plimsoll.training.disk import KEPT
from plimsoll.training.saved_arrays import (
    Part,
    SavedArrays,
    cut,
    description,
    folder_of,
    on_host,
    own_parts,
    part_of,
    pieces,
    saved_parts,
    start_writing,
    write,
)
from plimsoll.units import format_bytes

REMOVALS, GONE = 100, 10
"""Times, at most, that what a failed save left is removed, a tenth of a second apart, and looks in a row that it has to
stay away: a thread of Orbax that still writes makes the folder anew."""
LOOK_SECONDS = 1.0
"""Time between two looks whether a save that is waited for can end at all."""
BEGIN_SECONDS = 10.0
"""Time that a thread which saves has to begin, twice."""
NO_THREAD = "can't start new thread"
"""Python's words where there is no memory for one."""
DAMAGED = ".damaged"
FROZEN = "['params']['frozen']"
"""Where a state keeps its frozen weights."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix("step-"))


class Checkpoints:
    """The checkpoints of one run. One writer at a time.

    Args:
        folder: Of this process.
        in_background: Return from `save` while it is written.
        frozen: They hold frozen weights: not where a recipe reads them from elsewhere (`frozen_is_given`).
        shared: Folder that all processes of the run see, and write to together; None if only the first one writes.
        plan: Levers by which it trains, as plan.json holds them, which every checkpoint names; None for no training.
    """

    def __init__(
        self,
        folder: Path,
        *,
        in_background: bool,
        frozen: bool = True,
        shared: Path | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.in_background, self.frozen = folder, in_background, frozen
        self._steps = folder if shared is None else shared
        self._together = shared is not None and distributed.processes() > 1
        self._plan = dict(plan or {})
        self._saves = self._checks = 0
        self._done: threading.Event | None = None
        """Set when the save that is being written is."""
        self._failure: BaseException | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()  # Orbax's threads cannot end their work once the interpreter shuts down

    def all(self) -> list[Saved]:
        """Returns the checkpoints, the newest first."""
        checkpoints = [Saved(path) for path in self._steps.glob("step-*") if path.name[5:].isdigit()]
        return sorted(checkpoints, key=lambda saved: saved.step, reverse=True)

    def exist(self) -> bool:
        """Returns whether there are any; of several processes, what the first one finds."""
        return distributed.of_first("checkpoints-exist", bool(self.all()))

    def best(self) -> dict[str, Any] | None:
        """Returns `step` and `validation_loss` of the best checkpoint; None before the first evaluation.

        Where it was chosen by another metric, `standing` is its value.
        """
        path = self.folder / "best.json"
        try:
            best = json.loads(path.read_text())
            standing = {"standing": float(best["standing"])} if "standing" in best else {}
            return {"step": int(best["step"]), "validation_loss": float(best["validation_loss"])} | standing
        # It is not there, or damaged: the next evaluation writes another.
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def mark_best(self, step: int, validation_loss: float, *, standing: float | None = None) -> None:
        """Writes which step is the best. `standing`: the metric it was chosen by, if not the loss; higher is better."""
        best = {"step": step, "validation_loss": validation_loss}
        best |= {} if standing is None else {"standing": standing}
        replace_file(self.folder / "best.json", json.dumps(best))

    def save(self, step: int, state: Any, loader_state: dict[str, Any]) -> None:
        """Saves the state after the save before it is done. Raises StoppedError for a state that is not finite."""
        self.wait()
        if self._together:
            self._save_together(step, state if self.frozen else without_frozen(state), loader_state)
            return
        # Of several processes all send what they hold, and the first one keeps and writes it.
        each = _leaves(state if self.frozen else without_frozen(state))
        with contextlib.closing(Crossing()) as crossing:
            leaves = [(path, whole) for path, leaf in each if (whole := crossing.on_first(leaf)) is not None]
        if distributed.process() == 0 and all(saved.step != step for saved in self.all()):
            self._write(step, leaves, loader_state)
        distributed.barrier("saved")

    def save_alone(self, step: int, state: Any, loader_state: dict[str, Any]) -> None:
        """Saves the state if this process can without the others, who may wait for it within an evaluation.

        It can where it holds all of it and sees the folder of the run: of what is split the others would have to save
        their parts. Of several that ask at the same step one saves, and the others wait for that.
        """
        if distributed.processes() == 1:
            self.save(step, state, loader_state)
            return
        self.wait()
        leaves = _leaves(state if self.frozen else without_frozen(state))
        sees = self._together or distributed.process() == 0
        if not sees or not all(leaf.is_fully_replicated for _, leaf in leaves):
            return
        topic, board = f"saved-alone-{step}", distributed.Board()
        if not board.claim(topic):
            board.read(f"{topic}-ended")
            return
        if all(saved.step != step for saved in self.all()):
            whole = [(path, np.asarray(leaf)) for path, leaf in leaves]
            alone = Checkpoints(self._steps, in_background=False, plan=self._plan)
            write = partial(alone._write, step, whole, loader_state, self._unfinished(step, "-alone"))
            # In a thread, whose end is waited for only while there is memory for what it begins.
            beside = Checkpoints(self._steps, in_background=True)
            beside._finish(write)
            beside.wait()
        board.write(f"{topic}-ended", True)

    def _write(
        self,
        step: int,
        leaves: list[tuple[str, np.ndarray]],
        loader_state: dict[str, Any],
        unfinished: Path | None = None,
    ) -> None:
        require_finite(leaves, step)
        unfinished = unfinished or self._unfinished(step)
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            described = [description(path, leaf) for path, leaf in leaves]
            (unfinished / "state.json").write_text(self._state_json(step, loader_state, described))
            finish = start_writing(unfinished / "arrays", cut(leaves), in_background=self.in_background)
        except Exception as problem:
            raise _not_saved(unfinished, step, problem) from problem
        self._finish(partial(self._complete, unfinished, step, finish))

    def _save_together(self, step: int, state: Any, loader_state: dict[str, Any]) -> None:
        """Saves what this process holds. Nothing crosses between devices: processes meet at the key-value store."""
        leaves = _leaves(state)
        parts, unfinished = saved_parts(leaves), self._unfinished(step)
        self._saves += 1
        topic, board = f"save-{self._saves}", distributed.Board()
        if distributed.process() == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            board.write(f"{topic}-begun", all(saved.step != step for saved in self.all()))
        if not board.read(f"{topic}-begun"):
            return
        described = [description(path, leaf, parts[path]) for path, leaf in leaves]
        own = own_parts(leaves, parts)
        content = self._state_json(step, loader_state, described)
        self._finish(partial(self._complete_together, topic, step, own, on_host(cut(own)), content))

    def _complete_together(
        self, topic: str, step: int, own: list[tuple[str, np.ndarray]], arrays: dict[str, jax.Array], content: str
    ) -> None:
        """Writes this process's parts; the first one then completes the checkpoint, or removes what is there."""
        process, unfinished, board = distributed.process(), self._unfinished(step), distributed.Board()
        folder, checksums, refusal = unfinished / folder_of(process), dict[str, str](), None
        try:
            require_finite(own, step)
            if arrays:
                write(folder, arrays)
                checksums = _checksums(folder, unfinished)
                _flush_folder(folder)
                _flush_folder(folder.parent)
        except Exception as problem:
            why = _not_saved(folder, step, problem, checkpoints=self._steps)
            refusal = ended_by_memory(why) if isinstance(why, MemoryError) else str(why)
        board.write(f"{topic}-{process}", [checksums, refusal])
        if process == 0:
            each = [board.read(f"{topic}-{number}") for number in range(distributed.processes())]
            refusals = [f"process {number}: {said}" for number, (_, said) in enumerate(each) if said]
            try:
                if not refusals:
                    (unfinished / "state.json").write_text(content)
                    self._put_in_place(unfinished, step, {name: of for sums, _ in each for name, of in sums.items()})
            except Exception as problem:
                refusals = [f"process 0: {_not_saved(unfinished, step, problem)}"]
            if refusals:
                _remove(unfinished)
            board.write(f"{topic}-ended", "; ".join(refusals))
        if refused := board.read(f"{topic}-ended"):
            board.wait_until_read(f"{topic}-ended")
            self._failure = StoppedError(refused)

    def _unfinished(self, step: int, more: str = "") -> Path:
        return self._steps / f".partial-{step:08d}{more}"

    def _state_json(self, step: int, loader_state: dict[str, Any], leaves: list[dict[str, Any]]) -> str:
        return json.dumps({"step": step, "plan": self._plan, "loader": loader_state, "leaves": leaves})

    def _finish(self, complete: Callable[[], None]) -> None:
        """Completes a save, now or beside training."""
        if not self.in_background:
            complete()
            self.wait()
            return
        begun, done = threading.Event(), threading.Event()

        def attempt() -> None:
            begun.set()
            try:
                complete()
            except Exception as problem:  # of several processes: another one is gone
                self._failure = problem
            finally:
                done.set()

        # `threading.Thread.start` waits for ever where the new thread has no memory to begin with.
        try:
            _thread.start_new_thread(attempt, ())
        except RuntimeError as problem:
            raise MemoryError(str(problem)) from problem
        if not begun.wait(BEGIN_SECONDS) and not begun.wait(BEGIN_SECONDS):  # twice: both may have been frozen
            raise MemoryError(f"a thread that saves did not begin in {2 * BEGIN_SECONDS:g} s")
        self._done = done

    def wait(self) -> None:
        """Waits until what is being written is on disk; raises what went wrong with it."""
        if self._done is not None:
            done, self._done = self._done, None
            while not done.wait(LOOK_SECONDS):
                if saved_arrays.starved:
                    raise MemoryError("a thread that was to write had none to begin with")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def latest_whole(self, look: Callable[[Saved], str | None] | None = None) -> tuple[Saved | None, list[str]]:
        """Returns the newest checkpoint that passes its checksums, and notes on those that were set aside.

        `look` says what is wrong with one; by default `damage`.
        """
        look = look or damage
        notes = []
        for unfinished in self._steps.glob(".partial-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        if (self.folder / "best.json").exists() and self.best() is None:
            notes.append("best.json is damaged: the best so far is not known, the next evaluation counts as the best")
        for saved in self.all():
            problem = look(saved)
            if problem is None:
                return saved, notes
            numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
            names = (saved.path.with_name(f"{saved.path.name}{DAMAGED}{number}") for number in numbers)
            aside = next(path for path in names if not path.exists())  # one that was set aside before stays
            saved.path.rename(aside)
            notes.append(f"checkpoint {saved.step} is damaged ({problem}): set aside as {aside.name}")
        return None, notes

    def set_aside(self) -> list[str]:
        """Returns the names of damaged checkpoints, of this session and of those before it."""
        return sorted(path.name for path in self.folder.glob(f"step-*{DAMAGED}*"))

    def newest(self, like: Any) -> tuple[int | None, Any, dict[str, Any], list[str]]:
        """Returns step, state, loader's position and notes of the newest whole checkpoint; step None if there is none.

        Of several processes each reads what its devices are to hold, or the first one reads, leaf by leaf, and sends it
        to the others. Without `frozen`, the state has no frozen weights.
        """
        like = like if self.frozen else without_frozen(like)
        if distributed.processes() == 1:
            saved, notes = self.latest_whole()
            if saved is None:
                return None, None, {}, notes
            return saved.step, load_part(saved, like), loader_position(saved), notes
        board, leaves = distributed.Board(), None
        if distributed.process() == 0:
            saved, notes = self.latest_whole(self._damage_by_all if self._together else None)
            if not self._together:
                leaves = None if saved is None else _fitting(saved, like)
            board.write("newest", [saved and saved.step, saved and loader_position(saved), notes])
        step, position, notes = self._checked_for_the_first(board)
        if step is None:
            return None, None, {}, notes
        if self._together:
            return step, _load_own(Saved(self._steps / f"step-{step:08d}"), like), position, notes
        shapes, tree = jax.tree.flatten(like)
        with contextlib.closing(Crossing()) as crossing:
            loaded = [crossing.from_first(next(leaves)[1] if leaves else None, shape) for shape in shapes]
        return step, jax.tree.unflatten(tree, loaded), position, notes

    def _damage_by_all(self, saved: Saved) -> str | None:
        """Returns the damage in a few words, or None: every process reads its share of the files."""
        self._checks += 1
        topic, board, processes = f"check-{self._checks}", distributed.Board(), distributed.processes()
        board.write(topic, saved.path.name)
        found = [damage(saved, share=(0, processes))]
        found += [board.read(f"{topic}-{number}") for number in range(1, processes)]
        return next((problem for problem in found if problem), None)

    def _checked_for_the_first(self, board: distributed.Board) -> Any:
        """Returns what the first process found; until then the others read their share of what it asks about."""
        share = distributed.process(), distributed.processes()
        for number in itertools.count(1):
            topic, value = board.read_first_of("newest", f"check-{number}")
            if topic == "newest":
                return value
            board.write(f"{topic}-{share[0]}", damage(Saved(self._steps / value), share=share))

    def _complete(self, unfinished: Path, step: int, finish: Any) -> None:
        try:
            finish()
            self._put_in_place(unfinished, step, _checksums(unfinished / "arrays", unfinished))
        except Exception as problem:
            self._failure = _not_saved(unfinished, step, problem)

    def _put_in_place(self, unfinished: Path, step: int, checksums: Mapping[str, str]) -> None:
        """Writes the manifest, renames the folder, and removes checkpoints that are not kept."""
        everything = dict(sorted({**checksums, "state.json": content_of(unfinished / "state.json").sha256}.items()))
        replace_file(unfinished / "manifest.json", json.dumps(everything))
        _flush_folder(unfinished)
        unfinished.rename(self._steps / f"step-{step:08d}")
        _flush_folder(self._steps)
        best = self.best()
        for saved in self.all()[KEPT:]:
            if best is None or saved.step != best["step"]:
                shutil.rmtree(saved.path, ignore_errors=True)


def load_part(saved: Saved, like: Any, *, only: str | tuple[str, ...] = "") -> Any:
    """Loads the leaves under the paths that begin with `only`, one by one, in the shape of `like`.

    `like` holds shapes and dtypes, and shardings where some of the state is offloaded; else it goes to the device.
    Using a trained model needs `only="['params']"`, and not the optimizer, which is twice as large.
    """
    paths = [path for path, _ in _leaves(like)]
    shardings = {path: getattr(leaf, "sharding", None) for path, leaf in _leaves(like)}
    read = _fitting(saved, like, only=only)
    loaded = {path: jax.device_put(leaf, shardings[path]) for path, leaf in read}
    return jax.tree.unflatten(jax.tree.structure(like), [loaded[path] for path in paths])


def _load_own(saved: Saved, like: Any) -> Any:
    """Loads of every leaf what this process's devices hold, in the shape and with the shardings of `like`."""
    _require_fitting(saved, like)
    leaves = {leaf["path"]: leaf for leaf in _described(saved)}
    arrays = SavedArrays(saved.path, leaves.values())
    flat, tree = jax.tree.flatten(like)
    loaded = []
    for (path, _), shape in zip(_leaves(like), flat, strict=True):
        read: dict[Part, np.ndarray] = {}  # devices that hold the same need it once

        def of(index: Any, shape: Any = shape, leaf: Any = leaves[path], read: Any = read) -> np.ndarray:
            part = part_of(index, shape.shape)
            if part not in read:
                read[part] = arrays.read(leaf, part)
            return read[part]

        loaded.append(jax.block_until_ready(jax.make_array_from_callback(shape.shape, shape.sharding, of)))
    return jax.tree.unflatten(tree, loaded)


def _fitting(saved: Saved, like: Any, *, only: str | tuple[str, ...] = "") -> Iterator[tuple[str, np.ndarray]]:
    """Returns `read_leaves`. Raises CheckpointError where their shapes are not those of `like`."""
    return read_leaves(saved, only=only, frozen=_require_fitting(saved, like, only=only))


def _require_fitting(saved: Saved, like: Any, *, only: str | tuple[str, ...] = "") -> bool:
    """Raises CheckpointError where the leaves have not the shapes of `like`, and returns whether it has frozen ones.

    Frozen weights that were saved and are not wanted are left out: runs of before saved them always.
    """
    want = {path: (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in _leaves(like)}
    frozen = any(path.startswith(FROZEN) for path in want)
    have = {leaf["path"]: (tuple(leaf["shape"]), leaf["dtype"]) for leaf in _described(saved, only, frozen=frozen)}
    if have != want:
        path = next(p for p in [*have, *want] if have.get(p) != want.get(p))
        raise CheckpointError(
            f"checkpoint {saved.step} does not fit the recipe: {path} is {have.get(path)} there and {want.get(path)}"
            " here. Name another --run to start anew"
        )
    return frozen


def read_leaves(
    saved: Saved, *, only: str | tuple[str, ...] = "", frozen: bool = True
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields path and array of every leaf under `only`, one in memory at a time, in the order of the state."""
    arrays = SavedArrays(saved.path, _described(saved))
    for leaf in _described(saved, only, frozen=frozen):
        yield leaf["path"], arrays.read(leaf)


def _described(saved: Saved, only: str | tuple[str, ...] = "", *, frozen: bool = True) -> list[dict[str, Any]]:
    leaves = json.loads((saved.path / "state.json").read_text())["leaves"]
    leaves = [leaf for leaf in leaves if leaf["path"].startswith(only)]
    return [leaf for leaf in leaves if frozen or not leaf["path"].startswith(FROZEN)]


def without_frozen(state: Any) -> Any:
    """Returns the state without its frozen weights."""
    params = {name: part for name, part in state["params"].items() if name != "frozen"}
    return state | {"params": params}


def loader_position(saved: Saved) -> dict[str, Any]:
    return json.loads((saved.path / "state.json").read_text())["loader"]


def fingerprint(leaves: Iterable[tuple[str, np.ndarray]], position: Mapping[str, Any]) -> str:
    """Returns one SHA-256 that two runs share exactly if they learned the same, bit for bit.

    It covers parameters, optimizer, EMA, carry, step, RNG and the loader's position, in the order of `leaves` (a
    checkpoint's own). It does not cover plan, time or paths.
    """
    digest = hashlib.sha256()
    for path, leaf in leaves:
        digest.update(f"{path} {leaf.dtype} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data if leaf.size else b"")
    digest.update(json.dumps(position, sort_keys=True).encode())
    return digest.hexdigest()


def damage(saved: Saved, *, share: tuple[int, int] = (0, 1)) -> str | None:
    """Returns the damage in a few words, or None. Reads every byte.

    Args:
        saved: The checkpoint.
        share: Number of this process, and of how many that look at it: then it reads as few of the files.
    """
    manifest = saved.path / "manifest.json"
    if not manifest.exists():
        return "it has no manifest"
    try:
        expected = json.loads(manifest.read_text())
    except (ValueError, RecursionError):
        return "its manifest cannot be read"
    if not isinstance(expected, dict) or "state.json" not in expected:  # JSON, but not what we write
        return "its manifest lists no files"
    for name, checksum in [*expected.items()][share[0] :: share[1]]:
        path = saved.path / name
        if not path.exists():
            return f"{name} is missing"
        if content_of(path).sha256 != checksum:
            return f"{name} has changed since it was written"
    return None


def require_finite(leaves: list[tuple[str, np.ndarray]], step: int) -> None:
    """Raises StoppedError for a state with NaN or infinity in it, which must not replace a good one."""
    for path, leaf in leaves:
        if not np.issubdtype(leaf.dtype, np.integer) and not all(
            np.isfinite(piece.astype(np.float32, copy=False)).all() for piece in pieces(leaf)
        ):
            raise StoppedError(
                f"step {step}: {path} is not finite, so nothing was saved over an earlier checkpoint. Lower"
                " --learning-rate, or find the cause with --debug-nans, and run the same command again"
            )


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _checksums(folder: Path, within: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of a folder, by its path in another."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(within)): content_of(path).sha256 for path in files}


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(partial: Path) -> None:
    """Removes what a failed save left, and what threads of Orbax still write there: it would keep the disk full."""
    gone = 0
    for _ in range(REMOVALS):
        gone = 0 if partial.exists() else gone + 1
        if gone == GONE:
            return
        shutil.rmtree(partial, ignore_errors=True)
        time.sleep(0.1)


def _not_saved(partial: Path, step: int, problem: Exception, *, checkpoints: Path | None = None) -> Exception:
    """Returns a StoppedError about the disk, in a paragraph; any other problem as it is.

    Args:
        partial: What is removed, since it was not finished.
        step: That was to be saved.
        problem: What went wrong.
        checkpoints: Their folder, if `partial` is not in it.
    """
    _remove(partial)
    checkpoints = partial.parent if checkpoints is None else checkpoints
    if allocator.refused(problem):  # memory, not disk, under the same status
        return problem
    if str(problem) == NO_THREAD:
        return MemoryError(NO_THREAD)
    full = any(word in str(problem) for word in ("No space left", "RESOURCE_EXHAUSTED", "Disk quota", "ENOSPC"))
    if isinstance(problem, OSError):
        full = full or problem.errno in (errno.ENOSPC, errno.EDQUOT)
    elif not full:
        return problem
    free = format_bytes(shutil.disk_usage(checkpoints).free)
    what = f"the disk is full ({free} free)" if full else str(problem)
    before = max((saved.step for saved in Checkpoints(checkpoints, in_background=False).all()), default=None)
    advice = "make room, and run" if full else "run"
    earlier = "There is no earlier checkpoint" if before is None else f"The checkpoint of step {before} is whole"
    return StoppedError(
        f"step {step} could not be saved in {checkpoints}: {what}. {earlier}; {advice} the same command again to"
        " continue"
    )
