"""Reader of a compiled module: its instructions in execution order, and the lines of Python that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from plimsoll.planner.hlo.messages import HloModuleProto
from plimsoll.planner.hlo.shapes import part_at, shape_words

Location = tuple[int, tuple[int, ...]]
"""Location of a value: the id of its instruction, and the index in the tuple of results; () for the whole result."""

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "equinox", "chex", "numpy")
"""Packages that are skipped in the search for a source line: the line of their caller counts."""
HELPERS = ("plimsoll/levers/precision.py",)
"""Files of plimsoll that are skipped in the search for a source line, because all matmuls go through them."""

_MOVES = ("bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose", "convert", "get-tuple-element")
"""Operations that only move or convert their operand."""
_CARRIES = (*_MOVES, "while", "tuple", "parameter", "broadcast", "conditional", "call", "optimization-barrier")
"""Operations that hold a value which another operation computed."""


@dataclass(frozen=True)
class Origin:
    """Description of the operation that computed a value."""

    rank: int
    """Rank among descriptions of values in the same bytes. The description with the lowest rank is the most useful."""
    shape: str
    what: str
    place: str


class Module:
    """Reader of an `xla.HloModuleProto`. Instructions and computations are identified by their ids."""

    def __init__(self, serialized: bytes) -> None:
        message = HloModuleProto.FromString(serialized)
        self._stack = message.stack_frame_index
        self.entry: int = message.entry_computation_id
        self.instructions: dict[int, Any] = {}
        self.bodies: dict[int, list[int]] = {}
        """Instructions of each computation, in arbitrary order."""
        self.roots: dict[int, int] = {}
        """Instruction that computes the result, by computation."""
        self.schedule: dict[int, list[int]] = {
            entry.key: list(entry.value.instruction_ids)
            for entry in message.schedule.sequences
            if entry.HasField("value")
        }
        """Instructions of each computation in execution order; empty if the compiler did not keep the schedule."""
        for computation in message.computations:
            self.roots[computation.id] = computation.root_id
            self.bodies[computation.id] = [instruction.id for instruction in computation.instructions]
            self.instructions |= {instruction.id: instruction for instruction in computation.instructions}

    def scheduled_calls(self, instruction: int) -> list[int]:
        """Returns the computations that an instruction calls, without those that have no schedule."""
        return [called for called in self.instructions[instruction].called_computation_ids if called in self.schedule]

    def behind_bitcasts(self, identity: int) -> Any:
        """Returns the instruction before a chain of bitcasts, or the instruction itself if it is no bitcast."""
        instruction = self.instructions[identity]
        while instruction.opcode == "bitcast":
            instruction = self.instructions[instruction.operand_ids[0]]
        return instruction

    def origin(self, value: Location) -> Origin:
        """Returns the description of the operation that computed a value, with its source line."""
        identity, index = value
        instruction = self.instructions[identity]
        written = self._written(instruction)
        maker = instruction if written is None else self._maker(written)
        place = self._place(maker)
        carried = 2 if instruction.opcode in _CARRIES else int(written is None)
        rank = carried if place else 3
        name = maker.metadata.op_name  # JAX's name of the operation; empty if the compiler added the operation
        words = [name.rsplit("/", 1)[-1] or maker.opcode]
        words += ["backward"] if "transpose(" in name else []
        words += ["stacked by a loop"] if written is not None else []
        return Origin(rank, shape_words(part_at(instruction.shape, index)), ", ".join(words), place)

    def _written(self, instruction: Any) -> Any | None:
        """Returns the instruction whose result `instruction` writes into part of a buffer; None if it writes no part.

        A scan writes in this way the values that it stacks for the backward pass.
        """
        if instruction.opcode == "fusion" and instruction.called_computation_ids:
            instruction = self.instructions[self.roots[instruction.called_computation_ids[0]]]
        updates = instruction.opcode == "dynamic-update-slice"
        return self.instructions[instruction.operand_ids[1]] if updates else None

    def _maker(self, instruction: Any) -> Any:
        """Returns the nearest instruction with a source line, searching back through moves and into fusions."""
        while not self._place(instruction):
            if instruction.opcode == "fusion" and instruction.called_computation_ids:
                instruction = self.instructions[self.roots[instruction.called_computation_ids[0]]]
            elif instruction.opcode in _MOVES and instruction.operand_ids:
                instruction = self.instructions[instruction.operand_ids[0]]
            else:
                break
        return instruction

    def _place(self, instruction: Any) -> str:
        """Returns the innermost source line outside the libraries, like `plimsoll/models/decoder.py:124`; else ""."""
        metadata = instruction.metadata
        frames, identity = [], metadata.stack_frame_id
        while identity:  # first the innermost frame, then its callers; ids count from 1, and 0 means no frame
            frame = self._stack.stack_frames[identity - 1]
            location = self._stack.file_locations[frame.file_location_id - 1]
            frames.append((self._stack.file_names[location.file_name_id - 1], location.line))
            identity = frame.parent_frame_id
        if not frames and metadata.source_line:  # older compilers keep one line and no stack
            frames = [(metadata.source_file, metadata.source_line)]
        return next((f"{_short(file)}:{line}" for file, line in frames if not _is_library(file)), "")


def _is_library(file: str) -> bool:
    if file.endswith(HELPERS):
        return True
    parts = PurePath(file).parts
    packages = (part for part, folder in zip(parts[1:], parts, strict=False) if folder.endswith("-packages"))
    return any(package in LIBRARIES for package in packages)


def _short(file: str) -> str:
    """Returns a path relative to plimsoll's source or to the current folder; other paths are unchanged."""
    path = PurePath(file)
    for base in (Path(__file__).parents[3], Path.cwd()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return file
