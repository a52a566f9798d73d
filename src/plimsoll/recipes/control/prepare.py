"""`plimsoll prepare control`: windows of closed-loop states and the control that follows, streamed into HDF5.

A block has a trajectory of every family for each of a few variants. The windows of a block are shuffled and written
while the next block is simulated. The variants with the highest numbers are held out. Their rows are the last of the
file, from the index `train_rows` on, so training and validation share no trajectory and no variant. The seed determines
everything.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from plimsoll.data.hdf5.rows import joined
from plimsoll.data.hdf5.writer import Column, RowWriter, is_finished, new_file
from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError, PlimsollError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import free_bytes
from plimsoll.recipes.control.lqr import systems
from plimsoll.recipes.control.prepare_options import ROW_BYTES, Block, ControlOptions, ControlSet
from plimsoll.recipes.control.systems import MOST_INPUTS, MOST_STATES
from plimsoll.recipes.family import content_of
from plimsoll.units import format_bytes

CODE_BITS = 7
FEATURES = MOST_STATES + CODE_BITS
METHOD = 2
"""Version of sampling and scaling. Files of other versions have other content."""
DIVERGED = 1e4
"""Norm of the state at which a trajectory counts as diverged; it is simulated again from another initial state."""
ATTEMPTS = 20
PILOTS = 32
"""Minimum number of pilot trajectories of each family, from which its largest states and controls are taken. Each
variant has at least one."""
LEAST_SCALE = 1e-8

Progress = Callable[[float | None, str], None]
"""Function of the finished share (None if unknown) and a message."""
Simulation = tuple[Array, Array]
"""Result of `simulated`, which JAX may still be computing."""


def prepare(options: ControlSet, out: Path, progress: Progress = lambda share, words: None) -> dict[str, Any]:
    """Writes the data set, unless it is finished. Returns the answer of `prepare --json`."""
    started = time.perf_counter()
    made_with = Facts(options=dataclasses.asdict(options) | {"method": METHOD})
    finished_before = is_finished(out, made_with)
    maker = None
    seconds = 0.0
    if not finished_before:
        require_room(options, out)
        maker = _write(options, out, made_with, progress)
        seconds = time.perf_counter() - started
    again = {system.family.name: system.redraws for system in maker.systems} if maker else {}
    return {
        "path": str(out),
        "examples": options.samples,
        "finished_before": finished_before,
        "seconds": seconds,
        "examples_per_second": options.samples / seconds if seconds else None,
        "bytes": out.stat().st_size,
        "train_examples": options.train_rows,
        "variants": options.variants_used,
        "variants_held_out": options.held_out_variants,
        "trajectories_drawn_again": maker.rejected if maker else 0,
        "variants_drawn_again": {name: count for name, count in again.items() if count},
    }


def _write(options: ControlSet, out: Path, made_with: Facts, progress: Progress) -> Maker:
    """Writes all rows, and returns the `Maker` that simulated them."""
    columns = {
        "input_sequences": Column((options.window, FEATURES), "float32"),
        "controls": Column((MOST_INPUTS,), "float32"),
        "control_masks": Column((MOST_INPUTS,), "float32"),
        "system_ids": Column((), "S50"),
        "trajectory": Column((), "int64"),
        "variant": Column((), "int32"),
    }
    with new_file(
        out,
        columns,
        rows=options.samples,
        made_with=made_with,
        chunk_rows=options.chunk_rows,
        compression=None if options.compression == "none" else options.compression,
    ) as writer:
        maker = Maker(options)
        maker.describe(writer)
        for rows in maker.chunks():
            writer.append(rows)
            progress(writer.done / options.samples, f"{writer.done:,} of {options.samples:,} windows")
    return maker


def require_room(options: ControlSet, out: Path) -> None:
    """Raises DataError if the disk has no room for the set."""
    folder = out.expanduser().absolute().parent
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} for --out {out.name}: make it, or name another")
    needed = round(options.samples * ROW_BYTES[options.compression] * options.window / 32)
    free = free_bytes(folder / out.name)
    if needed > free:
        raise DataError(
            f"{options.samples:,} windows take up to {format_bytes(needed)} with --compression {options.compression},"
            f" and {format_bytes(free)} are free at {folder}: ask for at most"
            f" {options.samples * free // needed:,} --samples, or name another disk"
        )


class Maker:
    """Simulates a data set, and yields its rows block by block."""

    def __init__(self, options: ControlSet) -> None:
        self.options = options
        self.systems = systems(options)
        sizes = sorted({system.family.states for system in self.systems})
        self.groups = [[i for i, system in enumerate(self.systems) if system.family.states == size] for size in sizes]
        """Indices of the systems, grouped by number of states. A group is simulated together."""
        self.state_scale, self.control_scale, self.control_std = (scale.astype(np.float32) for scale in self._scales())
        codes = np.array([code(s.family.inputs, s.family.states) for s in self.systems], np.float32)
        self._room = np.zeros((len(self.systems) * options.together, options.length, FEATURES), np.float32)
        self._room[:, :, MOST_STATES:] = codes.repeat(options.together, axis=0)[:, None]
        self.names = np.array([system.family.name for system in self.systems], "S50")
        self.masks = np.zeros((len(self.systems), MOST_INPUTS), np.float32)
        self.gains = np.zeros((len(self.systems), MOST_INPUTS, MOST_STATES), np.float32)
        for row, system in enumerate(self.systems):
            inputs, states = system.gain.shape
            self.masks[row, :inputs] = 1
            scaled = -system.gain * self.state_scale[row][:states] / self.control_scale[row][:inputs, None]
            self.gains[row, :inputs, :states] = scaled
        self.rejected = 0
        """Number of trajectories that diverged and were simulated again."""

    def describe(self, writer: RowWriter) -> None:
        """Writes the attributes of the data set, and each family's scales, into a new file."""
        options = self.options
        writer.file.attrs.update(
            {
                "sequence_length": options.window,
                "max_state_dim": MOST_STATES,
                "max_input_dim": MOST_INPUTS,
                "dimension_encoding_size": CODE_BITS,
                "parameter_uncertainty": options.uncertainty,
                "process_noise_std": options.noise,
                "time_horizon": options.horizon,
                "dt": options.dt,
                "sequence_stride": options.stride,
                "total_sequences": options.samples,
                "train_rows": options.train_rows,
                "variants": options.variants_used,
                "variants_held_out": options.held_out_variants,
                "seed": options.seed,
                "total_trajectories_generated": sum(1 for _ in options.blocks()) * len(self._room),
            }
        )
        arrays = {
            "state_mean": np.zeros(MOST_STATES),
            "state_std": np.ones(MOST_STATES),
            "control_mean": np.zeros(MOST_INPUTS),
            "control_std": np.ones(MOST_INPUTS),
        }
        for row, system in enumerate(self.systems):
            inputs, states = system.gain.shape
            group = writer.file.require_group(f"normalization/{system.family.name}")
            group.attrs.update({"n_states": states, "n_inputs": inputs})
            arrays |= {
                f"{group.name}/state_max": self.state_scale[row][:states],
                f"{group.name}/control_max": self.control_scale[row][:inputs],
                f"{group.name}/control_std": self.control_std[row][:inputs],
            }
        for name, values in arrays.items():
            writer.file[name] = values.astype(np.float32)

    def chunks(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows, a chunk at a time, while the next block is simulated."""
        blocks = list(self.options.blocks())
        parts: list[dict[str, np.ndarray]] = []
        missing = self.options.chunk_rows
        with ThreadPoolExecutor(1) as ahead:
            running = ahead.submit(self._dispatched, blocks[0].number, blocks[0].variants)
            for block, after in zip(blocks, [*blocks[1:], None], strict=True):
                trajectories = self._trajectories(block, running.result())
                if after is not None:
                    running = ahead.submit(self._dispatched, after.number, after.variants)

                # Shuffle the block's windows. The index of a window is trajectory x windows_each + index in the
                # trajectory.
                random = np.random.default_rng([self.options.seed, 2, block.number])
                order = random.permutation(len(self._room) * self.options.windows_each)
                order = order[: block.end - block.first]
                while len(order):
                    chosen = order[:missing]
                    order = order[missing:]
                    parts.append(self._rows(block, trajectories, chosen))
                    missing -= len(chosen)
                    if not missing:
                        yield joined(parts)
                        parts = []
                        missing = self.options.chunk_rows
        if parts:
            yield joined(parts)

    def _dispatched(
        self, number: int, variants: tuple[int, ...], attempt: int = 0, *, use: int = 1
    ) -> list[Simulation]:
        """Starts a simulation per group of systems: a trajectory for each system and variant."""
        random = np.random.Generator(np.random.SFC64([self.options.seed, use, number, attempt]))
        started = []
        for group in self.groups:
            members = [self.systems[i] for i in group]
            steps = np.concatenate([system.steps[list(variants)] for system in members]).transpose(1, 2, 0)
            boxes = np.array([system.family.box for system in members]).repeat(len(variants), axis=0)
            first = (boxes * random.uniform(-1, 1, boxes.shape)).T.astype(np.float32)
            disturbances = random.standard_normal((self.options.length, *first.shape), np.float32)
            disturbances *= np.float32(self.options.noise)
            started.append(simulated(steps.astype(np.float32), first, disturbances))
        return started

    def _settled(self, running: list[Simulation], count: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yields for each trajectory its system's index, its own index among the `count` of that system, and its states
        (time, states).

        Trajectories that diverged are left out.
        """
        for group, (states, largest) in zip(self.groups, running, strict=True):
            trajectories = np.asarray(states)
            for column in np.flatnonzero(np.asarray(largest) < DIVERGED).tolist():
                yield group[column // count], column % count, trajectories[:, :, column]

    def _trajectories(self, block: Block, running: list[Simulation]) -> np.ndarray:
        """Returns a block's trajectories (families x variants, time, features), whose states are in units of their
        family's largest, in an array that the next block overwrites.

        Trajectories that diverged are simulated again from another start.
        """
        together = len(block.variants)
        missing = np.ones(len(self._room), bool)
        for attempt in range(ATTEMPTS):
            if attempt:
                running = self._dispatched(block.number, block.variants, attempt)
            for system, lane, trajectory in self._settled(running, together):
                place = system * together + lane
                size = trajectory.shape[1]
                if missing[place]:
                    self._room[place, :, :size] = trajectory / self.state_scale[system, :size]
                    missing[place] = False
            if not missing.any():
                return self._room
            self.rejected += int(missing.sum())
        names = sorted({self.systems[place // together].family.name for place in np.flatnonzero(missing)})
        raise PlimsollError(
            f"trajectories of {', '.join(names)} reached a norm of {DIVERGED:g} in each of {ATTEMPTS} draws: lower"
            " --noise or --uncertainty"
        )

    def _rows(self, block: Block, trajectories: np.ndarray, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the file's rows for windows of a block, by their indices `chosen`."""
        options, together = self.options, len(block.variants)
        windows = np.lib.stride_tricks.sliding_window_view(trajectories, options.window, axis=1)
        trajectory, window = np.divmod(chosen, options.windows_each)
        family = trajectory // together
        inputs = windows.swapaxes(2, 3)[trajectory, window * options.stride]
        return {
            "input_sequences": inputs,
            "controls": np.einsum("nij,nj->ni", self.gains[family], inputs[:, -1, :MOST_STATES]),
            "control_masks": self.masks[family],
            "system_ids": self.names[family],
            "trajectory": (np.int64(block.number) * len(trajectories) + trajectory).astype(np.int64),
            "variant": np.array(block.variants, np.int32)[trajectory % together],
        }

    def _scales(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns, for each family, the largest |state| and |control| in pilot trajectories, and the RMS of scaled
        controls."""
        options, count = self.options, len(self.systems)
        states, controls = np.full((count, MOST_STATES), LEAST_SCALE), np.full((count, MOST_INPUTS), LEAST_SCALE)
        squares, pilots = np.zeros((count, MOST_INPUTS)), np.zeros(count)
        for number in range(-(-max(PILOTS, options.variants_used) // options.together)):
            lanes = [number * options.together + lane for lane in range(options.together)]
            batch = self._dispatched(number, tuple(lane % options.variants_used for lane in lanes), use=3)
            for row, _, trajectory in self._settled(batch, options.together):
                inputs, size = self.systems[row].gain.shape
                control = trajectory @ self.systems[row].gain.T.astype(np.float32)
                states[row, :size] = np.maximum(states[row, :size], np.abs(trajectory).max(axis=0))
                controls[row, :inputs] = np.maximum(controls[row, :inputs], np.abs(control).max(axis=0))
                squares[row, :inputs] += np.mean(control**2, axis=0)
                pilots[row] += 1
        for row, system in enumerate(self.systems):
            inputs, size = system.gain.shape
            states[row, size:], controls[row, inputs:] = 1, 1
        return states, controls, np.sqrt(squares / np.maximum(pilots, 1)[:, None]) / controls


def code(inputs: int, states: int) -> list[int]:
    """Returns the numbers of inputs in 3 bits and of states in 4 bits, most significant first: (1, 4) is 0010100."""
    return [int(bit) for bit in f"{inputs:03b}{states:04b}"]


@jax.jit
def simulated(
    steps: Float[Array, "states states count"],
    first: Float[Array, "states count"],
    disturbances: Float[Array, "time states count"],
) -> tuple[Float[Array, "time states count"], Float[Array, " count"]]:
    """Simulates closed loops by a scan over time; one disturbance is added after each step.

    The trajectories are the last axis, so that a step of small systems is a few long vector operations and not many
    small products. The matrices are made in float64 (`lqr.py`). NumPy samples the disturbances in advance: in the
    scan, JAX's counter-based generator took two thirds of the time (notes, "Windows of control").

    Returns:
        Trajectories side by side, and the largest norm of a state in each, which may be NaN if it diverged.
    """

    def step(carry: tuple[Array, Array], disturbance: Array) -> tuple[tuple[Array, Array], Array]:
        state, largest = carry
        moved = jnp.sum(steps * state[None], axis=1) + disturbance
        squared = jnp.sum(state**2, axis=0)
        return (moved, jnp.where(squared <= largest, largest, squared)), state  # a NaN stays one

    (_, largest), states = jax.lax.scan(step, (first, jnp.zeros(first.shape[1])), disturbances)
    return states, jnp.sqrt(largest)


def make(options: ControlOptions) -> dict[str, Any]:
    """Writes the HDF5 file of `plimsoll prepare control`; progress goes to standard error."""
    return prepare(content_of(options, ControlSet), Path(options.out).expanduser(), Spoken())
