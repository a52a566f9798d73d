"""A compiled module: its instructions in the order in which they run, and the lines of Python they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from plimsoll.planner.hlo.messages import HloModuleProto
from plimsoll.planner.hlo.shapes import part_at, shape_words

Location = tuple[int, tuple[int, ...]]
"""A value: the id of its instruction, and an index into the tuple which that returns; () for all of it."""

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "equinox", "chex", "numpy")
"""Installed packages whose lines are passed over for those of their callers."""
HELPERS = ("plimsoll/levers/precision.py",)
"""Our own files that are skipped when a buffer is traced to its source line: all matmuls of models go through them."""

_MOVES = ("bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose", "convert", "get-tuple-element")
"""Operations that pass a value on."""
_CARRIES = (*_MOVES, "while", "tuple", "parameter", "broadcast", "conditional", "call", "optimization-barrier")
"""Operations that hold a value which another one computed."""


@dataclass(frozen=True)
class Origin:
    """The operation that computed a buffer, in words. A lower `rank` explains more."""

    rank: int
    shape: str
    what: str
    place: str


class Module:
    """An `xla.HloModuleProto`. Instructions and computations are named by their ids."""

    def __init__(self, serialized: bytes) -> None:
        message = HloModuleProto.FromString(serialized)
        self._stack = message.stack_frame_index
        self.entry: int = message.entry_computation_id
        self.instructions: dict[int, Any] = {}
        self.bodies: dict[int, list[int]] = {}
        """Computation to its instructions, in no order that means anything."""
        self.roots: dict[int, int] = {}
        """Computation to the instruction that is its result."""
        self.schedule: dict[int, list[int]] = {
            entry.key: list(entry.value.instruction_ids)
            for entry in message.schedule.sequences
            if entry.HasField("value")
        }
        """Computation to its instructions in the order they run; empty where the compiler has not kept it."""
        for computation in message.computations:
            self.roots[computation.id] = computation.root_id
            self.bodies[computation.id] = [instruction.id for instruction in computation.instructions]
            self.instructions |= {instruction.id: instruction for instruction in computation.instructions}

    def scheduled_calls(self, instruction: int) -> list[int]:
        """Returns the computations that an instruction calls and that have a schedule."""
        return [called for called in self.instructions[instruction].called_computation_ids if called in self.schedule]

    def behind_bitcasts(self, identity: int) -> Any:
        """Returns the instruction whose value this one is, perhaps under another shape."""
        instruction = self.instructions[identity]
        while instruction.opcode == "bitcast":
            instruction = self.instructions[instruction.operand_ids[0]]
        return instruction

    def origin(self, value: Location) -> Origin:
        """Returns the operation that computed a value, with its line in the source."""
        identity, index = value
        instruction = self.instructions[identity]
        written = self._written(instruction)
        maker = instruction if written is None else self._maker(written)
        place = self._place(maker)
        carried = 2 if instruction.opcode in _CARRIES else int(written is None)
        rank = carried if place else 3
        name = maker.metadata.op_name  # JAX's name of the operation; else the compiler's
        words = [name.rsplit("/", 1)[-1] or maker.opcode]
        words += ["backward"] if "transpose(" in name else []
        words += ["stacked by a loop"] if written is not None else []
        return Origin(rank, shape_words(part_at(instruction.shape, index)), ", ".join(words), place)

    def _written(self, instruction: Any) -> Any | None:
        """Returns what a loop writes into this buffer, a slice at a time: a scan stacks what it keeps."""
        if instruction.opcode == "fusion" and instruction.called_computation_ids:
            instruction = self.instructions[self.roots[instruction.called_computation_ids[0]]]
        updates = instruction.opcode == "dynamic-update-slice"
        return self.instructions[instruction.operand_ids[1]] if updates else None

    def _maker(self, instruction: Any) -> Any:
        """Returns the nearest instruction with a place of its own, back through moves of a value and into fusions."""
        while not self._place(instruction):
            if instruction.opcode == "fusion" and instruction.called_computation_ids:
                instruction = self.instructions[self.roots[instruction.called_computation_ids[0]]]
            elif instruction.opcode in _MOVES and instruction.operand_ids:
                instruction = self.instructions[instruction.operand_ids[0]]
            else:
                break
        return instruction

    def _place(self, instruction: Any) -> str:
        """Returns `plimsoll/models/decoder.py:124`, the innermost line outside the libraries; empty for none."""
        metadata = instruction.metadata
        frames, identity = [], metadata.stack_frame_id
        while identity:  # of the innermost frame, then of its callers; ids count from 1, 0 is none
            frame = self._stack.stack_frames[identity - 1]
            location = self._stack.file_locations[frame.file_location_id - 1]
            frames.append((self._stack.file_names[location.file_name_id - 1], location.line))
            identity = frame.parent_frame_id
        if not frames and metadata.source_line:  # one line, without the stack: older compilers
            frames = [(metadata.source_file, metadata.source_line)]
        return next((f"{_short(file)}:{line}" for file, line in frames if not _is_library(file)), "")


def _is_library(file: str) -> bool:
    if file.endswith(HELPERS):
        return True
    parts = PurePath(file).parts
    packages = (part for part, folder in zip(parts[1:], parts, strict=False) if folder.endswith("-packages"))
    return any(package in LIBRARIES for package in packages)


def _short(file: str) -> str:
    """Returns the path within this package or within the current folder; the whole path of any other file."""
    path = PurePath(file)
    for base in (Path(__file__).parents[3], Path.cwd()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return file
