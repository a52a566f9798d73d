"""`plimsoll prepare control`: windows of closed-loop states and the control that follows, streamed into HDF5.

Simulated in blocks: a trajectory of every family for each of a few variants, whose windows are mixed and written while
the next block is simulated. The last variants are held out: their rows are the last of the file, from `train_rows` on,
so that no trajectory and no variant is in both parts. All of it follows from the seed.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.data.hdf5.writer import Column, GrowingFile, is_finished
from plimsoll.errors import DataError, PlimsollError
from plimsoll.recipes.control.prepare_options import Block, ControlOptions, ControlSet
from plimsoll.recipes.control.simulation import Simulated, simulated
from plimsoll.recipes.control.systems import MOST_INPUTS, MOST_STATES
from plimsoll.recipes.control.variants import System, systems
from plimsoll.recipes.control.window_packing import packed_windows
from plimsoll.recipes.family import content_of
from plimsoll.units import format_bytes, format_seconds

CODE_BITS = 3, 4
"""Of the number of inputs, then of the number of states, most significant first."""
FEATURES = MOST_STATES + sum(CODE_BITS)
STATES_OF_CODE = np.array([0] * CODE_BITS[0] + [2**bit for bit in reversed(range(CODE_BITS[1]))], np.float32)
"""Its product with a code is the number of states."""
METHOD = 2
"""Of drawing and scaling: what was begun by another one is not continued."""
DIVERGED = 1e4
"""A trajectory with a state of this norm is simulated again from another start."""
ATTEMPTS = 20
PILOTS = 32
"""Trajectories of each family, at least, that the largest states and controls are taken from, before the first row; and
one of each variant."""
LEAST_SCALE = 1e-8
MARK_SECONDS = 2.0

Progress = Callable[[int, int], None]
"""Called with rows written, and rows in all."""


def columns(made: ControlSet) -> dict[str, Column]:
    return {
        "input_sequences": Column((made.window, FEATURES), "float32", quicker=_packed),
        "controls": Column((MOST_INPUTS,), "float32"),
        "control_masks": Column((MOST_INPUTS,), "float32", fill=1.0),
        "system_ids": Column((), "S50"),
        "trajectory": Column((), "int64"),
        "variant": Column((), "int32"),
    }


def _packed(windows: np.ndarray) -> bytes | None:
    return packed_windows(windows, states=MOST_STATES, code=STATES_OF_CODE)


def prepare(made: ControlSet, out: Path, progress: Progress = lambda done, rows: None) -> dict[str, Any]:
    """Writes the set, or what of it is missing. The answer is what `prepare --json` prints."""
    started = time.perf_counter()
    made_with = dataclasses.asdict(made) | {"method": METHOD}
    if is_finished(out, made_with):
        progress(made.samples, made.samples)
        return _answer(made, out, begun_at=made.samples, seconds=0.0)
    require_room(made, out)
    compression = None if made.compression == "none" else made.compression
    with GrowingFile(
        out,
        columns(made),
        rows=made.samples,
        made_with=made_with,
        chunk_rows=made.chunk_rows,
        compression=compression,
    ) as file:
        begun_at = file.done
        maker = Maker(made)
        if not begun_at:
            maker.describe(file)
        file.begin()
        marked = time.perf_counter()
        for rows in maker.chunks(begun_at):
            file.append(rows)
            if time.perf_counter() - marked > MARK_SECONDS:
                file.mark()
                marked = time.perf_counter()
                progress(file.done, made.samples)
        file.finish()
        progress(made.samples, made.samples)
    again = {one.family.name: one.drawn_again for one in maker.systems if one.drawn_again}
    seconds = time.perf_counter() - started
    return _answer(made, out, begun_at=begun_at, seconds=seconds, rejected=maker.rejected, drawn_again=again)


def _answer(
    made: ControlSet,
    out: Path,
    *,
    begun_at: int,
    seconds: float,
    rejected: int = 0,
    drawn_again: dict[str, int] | None = None,
) -> dict[str, Any]:
    return {
        "path": str(out),
        "examples": made.samples,
        "examples_before": begun_at,
        "finished_before": begun_at == made.samples,
        "seconds": seconds,
        "examples_per_second": (made.samples - begun_at) / seconds if seconds else None,
        "bytes": out.stat().st_size,
        "train_examples": made.train_rows,
        "variants": made.variants_used,
        "variants_held_out": made.held_out_variants,
        "trajectories_drawn_again": rejected,
        "variants_drawn_again": drawn_again or {},
    }


def require_room(made: ControlSet, out: Path) -> None:
    """Refuses before the first row what the disk has no room for."""
    folder = out.expanduser().absolute().parent
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} for --out {out.name}: make it, or name another")
    partial = out.with_name(f"{out.name}.partial")
    written = partial.stat().st_blocks * 512 if partial.exists() else 0
    needed = made.disk_bytes - written
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{made.samples:,} windows take up to {format_bytes(needed)} with --compression {made.compression}, and"
            f" {format_bytes(free)} are free at {folder}: ask for at most"
            f" {made.samples * free // made.disk_bytes:,} --samples, or name another disk"
        )


class Maker:
    """The rows of a set, block by block."""

    def __init__(self, made: ControlSet) -> None:
        self.made = made
        self.systems = systems(variants=made.variants_used, uncertainty=made.uncertainty, dt=made.dt, seed=made.seed)
        sizes = sorted({one.family.states for one in self.systems})
        self.groups = [[i for i, one in enumerate(self.systems) if one.family.states == size] for size in sizes]
        self.state_scale, self.control_scale, self.control_std = (scale.astype(np.float32) for scale in self._scales())
        codes = np.array([code(one.family.inputs, one.family.states) for one in self.systems], np.float32)
        self._room = np.zeros((len(self.systems) * made.together, made.length, FEATURES), np.float32)
        self._room[:, :, MOST_STATES:] = codes.repeat(made.together, axis=0)[:, None]
        self.names = np.array([one.family.name for one in self.systems], "S50")
        self.masks = np.zeros((len(self.systems), MOST_INPUTS), np.float32)
        self.gains = np.zeros((len(self.systems), MOST_INPUTS, MOST_STATES), np.float32)
        for row, one in enumerate(self.systems):
            inputs, states = one.gain.shape
            self.masks[row, :inputs] = 1
            scaled = -one.gain * self.state_scale[row][:states] / self.control_scale[row][:inputs, None]
            self.gains[row, :inputs, :states] = scaled
        self.rejected = 0
        """Trajectories of this process that ran away, and were simulated again."""

    def describe(self, file: GrowingFile) -> None:
        """What the file says of itself, in attributes, and each family's scales."""
        made = self.made
        told = {
            "sequence_length": made.window,
            "max_state_dim": MOST_STATES,
            "max_input_dim": MOST_INPUTS,
            "dimension_encoding_size": sum(CODE_BITS),
            "parameter_uncertainty": made.uncertainty,
            "process_noise_std": made.noise,
            "time_horizon": made.horizon,
            "dt": made.dt,
            "sequence_stride": made.stride,
            "total_sequences": made.samples,
            "train_rows": made.train_rows,
            "variants": made.variants_used,
            "variants_held_out": made.held_out_variants,
            "seed": made.seed,
            "total_trajectories_generated": made.trajectories,
        }
        for name, value in told.items():
            file.attribute(name, value)
        for row, one in enumerate(self.systems):
            group = f"normalization/{one.family.name}"
            file.attribute("n_states", one.family.states, group=group)
            file.attribute("n_inputs", one.family.inputs, group=group)
            inputs, states = one.gain.shape
            for name, values in (
                ("state_max", self.state_scale[row][:states]),
                ("control_max", self.control_scale[row][:inputs]),
                ("control_std", self.control_std[row][:inputs]),
            ):
                file.array(f"{group}/{name}", values.astype(np.float32))
        for name, values in (
            ("state_mean", np.zeros(MOST_STATES)),
            ("state_std", np.ones(MOST_STATES)),
            ("control_mean", np.zeros(MOST_INPUTS)),
            ("control_std", np.ones(MOST_INPUTS)),
        ):
            file.array(name, values.astype(np.float32))

    def chunks(self, begin: int) -> Iterator[dict[str, np.ndarray]]:
        """Rows from `begin` on, a chunk at a time; the next block is simulated meanwhile."""
        blocks = [block for block in self.made.blocks() if block.end > begin]
        pending: list[dict[str, np.ndarray]] = []
        with ThreadPoolExecutor(1) as ahead:
            under_way = [ahead.submit(self._dispatched, block.number, block.variants) for block in blocks[:1]]
            for index, block in enumerate(blocks):
                trajectories = self._trajectories(block, under_way.pop().result())
                under_way = [
                    ahead.submit(self._dispatched, b.number, b.variants) for b in blocks[index + 1 : index + 2]
                ]
                order = self._order(block)[max(0, begin - block.first) : block.end - block.first]
                while len(order):
                    room = self.made.chunk_rows - sum(len(one["variant"]) for one in pending)
                    pending.append(self._rows(block, trajectories, order[:room]))
                    order = order[room:]
                    if sum(len(one["variant"]) for one in pending) == self.made.chunk_rows:
                        yield _joined(pending)
                        pending = []
        if pending:
            yield _joined(pending)

    def _dispatched(self, number: int, variants: tuple[int, ...], attempt: int = 0, *, use: int = 1) -> list[Simulated]:
        """One simulation for each number of states, under way: a trajectory of each of its families and variants."""
        random = np.random.Generator(np.random.SFC64([self.made.seed, use, number, attempt]))
        found = []
        for group in self.groups:
            members = [self.systems[i] for i in group]
            steps = np.concatenate([one.steps[list(variants)] for one in members]).transpose(1, 2, 0)
            first = _starts(members, len(variants), random)
            disturbances = random.standard_normal((self.made.length, *first.shape), np.float32)
            disturbances *= np.float32(self.made.noise)
            found.append(simulated(steps.astype(np.float32), first, disturbances))
        return found

    def _trajectories(self, block: Block, under_way: list[Simulated]) -> np.ndarray:
        """(families x variants, time, features) in units of each family's largest, in room that is used again."""
        together, found = len(block.variants), self._room
        missing = np.ones(len(found), bool)
        for attempt in range(ATTEMPTS):
            batch = under_way if attempt == 0 else self._dispatched(block.number, block.variants, attempt)
            for group, one in zip(self.groups, batch, strict=True):
                places = (np.array(group)[:, None] * together + np.arange(together)).ravel()
                good = np.asarray(one.largest) < DIVERGED
                take = np.flatnonzero(missing[places] & good)
                self.rejected += int(np.sum(missing[places] & ~good))
                states = np.asarray(one.states)
                size = states.shape[1]
                for column in take.tolist():
                    place = places[column]
                    found[place, :, :size] = states[:, :, column] / self.state_scale[place // together, :size]
                missing[places[take]] = False
            if not missing.any():
                return found
        names = sorted({self.systems[place // together].family.name for place in np.flatnonzero(missing)})
        raise PlimsollError(
            f"trajectories of {', '.join(names)} reached a norm of {DIVERGED:g} in each of {ATTEMPTS} draws: lower"
            " --noise or --uncertainty"
        )

    def _order(self, block: Block) -> np.ndarray:
        """Windows of a block as they lie in the file: trajectory x windows of each + window."""
        random = np.random.default_rng([self.made.seed, 2, block.number])
        return random.permutation(len(self._room) * self.made.windows_each)

    def _rows(self, block: Block, trajectories: np.ndarray, chosen: np.ndarray) -> dict[str, np.ndarray]:
        made, together = self.made, len(block.variants)
        windows = np.lib.stride_tricks.sliding_window_view(trajectories, made.window, axis=1)
        trajectory, window = np.divmod(chosen, made.windows_each)
        family = trajectory // together
        inputs = windows.swapaxes(2, 3)[trajectory, window * made.stride]
        return {
            "input_sequences": inputs,
            "controls": np.einsum("nij,nj->ni", self.gains[family], inputs[:, -1, :MOST_STATES]),
            "control_masks": self.masks[family],
            "system_ids": self.names[family],
            "trajectory": (np.int64(block.number) * len(trajectories) + trajectory).astype(np.int64),
            "variant": np.array(block.variants, np.int32)[trajectory % together],
        }

    def _scales(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each family: largest |state| and |control| of the pilots, and the control's root mean square beside its
        largest."""
        made, count = self.made, len(self.systems)
        states, controls = np.full((count, MOST_STATES), LEAST_SCALE), np.full((count, MOST_INPUTS), LEAST_SCALE)
        squares, pilots = np.zeros((count, MOST_INPUTS)), np.zeros(count)
        for number in range(-(-max(PILOTS, made.variants_used) // made.together)):
            lanes = [number * made.together + lane for lane in range(made.together)]
            batch = self._dispatched(number, tuple(lane % made.variants_used for lane in lanes), use=3)
            for group, one in zip(self.groups, batch, strict=True):
                largest, moved = np.asarray(one.largest), np.asarray(one.states)
                for column in np.flatnonzero(largest < DIVERGED).tolist():
                    row = group[column // made.together]
                    inputs, size = self.systems[row].gain.shape
                    control = moved[:, :, column] @ self.systems[row].gain.T.astype(np.float32)
                    states[row, :size] = np.maximum(states[row, :size], np.abs(moved[:, :, column]).max(axis=0))
                    controls[row, :inputs] = np.maximum(controls[row, :inputs], np.abs(control).max(axis=0))
                    squares[row, :inputs] += np.mean(control**2, axis=0)
                    pilots[row] += 1
        if not pilots.all():
            raise DataError(
                f"every trajectory of {self.systems[int(np.argmin(pilots))].family.name} reached a state of"
                f" {DIVERGED:g}: lower --noise ({made.noise:g}) or --uncertainty ({made.uncertainty:g})"
            )
        for row, one in enumerate(self.systems):
            inputs, size = one.gain.shape
            states[row, size:], controls[row, inputs:] = 1, 1
        return states, controls, np.sqrt(squares / pilots[:, None]) / controls


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return parts[0] if len(parts) == 1 else {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def code(inputs: int, states: int) -> list[int]:
    """Both numbers in binary, 3 and 4 bits, most significant first: (1, 4) is 0010100."""
    return [
        number >> bit & 1
        for number, bits in zip((inputs, states), CODE_BITS, strict=True)
        for bit in reversed(range(bits))
    ]


def _starts(members: list[System], each: int, random: np.random.Generator) -> np.ndarray:
    """(states, members x each) in the members' boxes."""
    boxes = np.array([one.family.box for one in members]).repeat(each, axis=0)
    return (boxes * random.uniform(-1, 1, boxes.shape)).T.astype(np.float32)


def make(options: ControlOptions) -> dict[str, Any]:
    """Makes the file of `plimsoll prepare control`; progress goes to standard error."""
    return prepare(content_of(options, ControlSet), Path(options.out).expanduser(), _Bar())


class _Bar:
    """A line now and then: rows, speed, time left."""

    def __init__(self) -> None:
        self._started, self._first = time.monotonic(), -1

    def __call__(self, done: int, rows: int) -> None:
        now = time.monotonic()
        if self._first < 0:
            self._started, self._first = now, done
            return
        speed = (done - self._first) / max(now - self._started, 1e-9)
        left = format_seconds((rows - done) / speed) if speed and done < rows else "0 s"
        print(f"  {done:,} of {rows:,} windows  {speed:,.0f}/s  left {left}", file=sys.stderr, flush=True)
