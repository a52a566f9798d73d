"""The largest temporaries of a compiled function at its peak, each with its place in the source.

The compiler's buffer assignment says where in the step's allocation every temporary lies; the optimised module says
which operation made it, and from which line of Python that came; its schedule says when each is alive (lifetimes.py).
A module without a schedule leaves that open: then the largest stands for all that take turns in the same bytes. Either
way those listed are disjoint, and their sum is at most the allocation.

The compilers for chips that are not here keep their assignment to themselves. There the schedule alone says what is
alive at once, and `values.py` what is one and the same; docs/chips.md says how near the sum is to the allocation.

Field numbers are those of xla/service/hlo.proto and xla/xla_data.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from plimsoll.planned import Buffer
from plimsoll.planner.hlo.lifetimes import Lifetimes, Location, Scheduled
from plimsoll.planner.hlo.protobuf import Message, number, numbers, parsed, text
from plimsoll.planner.hlo.values import Values

LISTED = 8
"""Of the largest."""

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "equinox", "chex", "numpy")
"""Installed packages whose lines are passed over for those of their callers."""
HELPERS = ("plimsoll/levers/precision.py",)
"""Ours, of which the same is true: every dot of every model goes through it."""

DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4",
}  # fmt: skip
"""`xla.PrimitiveType`; 13 is a tuple."""

_MOVED = ("bitcast", "copy", "copy-start", "copy-done", "reshape", "transpose", "convert", "get-tuple-element")
"""What passes a value on."""
_CARRIED = (*_MOVED, "while", "tuple", "parameter", "broadcast", "conditional", "call", "optimization-barrier")
"""What holds a value that something else has made."""


def largest_temporaries(compiled: Any, *, most: int = LISTED) -> list[Buffer]:
    """Of a `jax.stages.Compiled`, largest first; empty where the backend reports neither assignment nor schedule."""
    stats = compiled.memory_analysis()
    assignment = stats.serialized_buffer_assignment_proto if stats is not None else b""
    modules = compiled.runtime_executable().hlo_modules()
    if not modules:
        return []
    module = Module(modules[0].as_serialized_hlo_module_proto())
    if assignment:
        return temporaries(Assignment(assignment), module)[:most]
    return scheduled(module)[:most] if module.schedule else []


def temporaries(assignment: Assignment, module: Module) -> list[Buffer]:
    """All that are alive at the peak; without a schedule, all that are the largest in their bytes."""
    places = assignment.temporary_places()
    if module.schedule:
        places = at_peak(places, module.lifetimes(), assignment.aliases())
    return _named(places, module)


def scheduled(module: Module) -> list[Buffer]:
    """All that are alive at the peak by the schedule alone, each in a place of its own."""
    places, aliases = [], {}
    for allocation, (size, members) in enumerate(module.values().temporary()):
        places.append(Place(allocation, 0, size, sorted(members)))
        aliases |= dict.fromkeys(members, members)
    return _named(at_peak(places, module.lifetimes(), aliases), module)


def _named(places: Iterable[Place], module: Module) -> list[Buffer]:
    chosen = []
    for size, sharing in _disjoint(places):
        made = min((module.origin(buffer) for buffer in sharing), key=lambda origin: origin.rank)
        chosen.append(Buffer(bytes=size, shape=made.shape, what=made.what, place=made.place))
    return chosen


@dataclass(frozen=True)
class Place:
    """Bytes of an allocation, and what lies exactly there at one time or another."""

    allocation: int
    offset: int
    size: int
    buffers: list[Location] = field(default_factory=list)


def at_peak(places: Sequence[Place], lifetimes: Lifetimes, aliases: Mapping[Location, set[Location]]) -> list[Place]:
    """Those that are alive when most bytes are, with the buffers that are it then, by all of their names."""
    births = [(*lifetimes.of(buffer), place, buffer) for place in places for buffer in place.buffers]
    births.sort(key=lambda birth: birth[0])
    alive: list[tuple[int, int, Place, Location]] = []
    most, peak = -1, []
    for birth in births:
        alive = [one for one in alive if one[1] >= birth[0]] + [birth]
        if sum(one[2].size for one in alive) > most and (size := _union(one[2] for one in alive)) > most:
            most, peak = size, alive
    found: dict[tuple[int, int, int], Place] = {}
    for _, _, place, buffer in peak:
        at = place.allocation, place.offset, place.size
        names = aliases.get(buffer, set())
        others = [other for other in place.buffers if other in names and other != buffer]
        found.setdefault(at, Place(*at)).buffers.extend([buffer, *others])
    return list(found.values())


def _union(places: Iterable[Place]) -> int:
    """Bytes that at least one of them takes."""
    total, reached = 0, (-1, 0)
    for allocation, offset, size in sorted({(place.allocation, place.offset, place.size) for place in places}):
        start = max(offset, reached[1]) if reached[0] == allocation else offset
        total += max(0, offset + size - start)
        reached = allocation, max(start, offset + size)
    return total


def _disjoint(places: Iterable[Place]) -> Iterator[tuple[int, list[Location]]]:
    taken: dict[int, list[tuple[int, int]]] = {}
    for place in sorted(places, key=lambda place: (-place.size, place.allocation, place.offset)):
        start, end = place.offset, place.offset + place.size
        others = taken.setdefault(place.allocation, [])
        if all(end <= low or high <= start for low, high in others):
            others.append((start, end))
            yield place.size, place.buffers


class Assignment:
    """An `xla.BufferAssignmentProto`."""

    def __init__(self, serialized: bytes) -> None:
        self._message = parsed(serialized)

    @property
    def temporary_bytes(self) -> int:
        """The same as `temp_size_in_bytes`."""
        return sum(number(allocation, 2) for allocation in self._temporary())

    def temporary_places(self) -> list[Place]:
        places: dict[tuple[int, int, int], Place] = {}
        for allocation in self._temporary():
            for assigned in map(parsed, allocation.get(9, ())):
                at = number(allocation, 1), number(assigned, 2), number(assigned, 3)
                places.setdefault(at, Place(*at)).buffers.append(self._defined[number(assigned, 1)])
        return list(places.values())

    def aliases(self) -> dict[Location, set[Location]]:
        """The other names of a buffer: in the state of a loop, and where that is updated."""
        found: dict[Location, set[Location]] = {}
        for alias in map(parsed, self._message.get(2, ())):
            one, other = self._defined[number(alias, 1)], _location(alias[2][0])
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
        return found

    @cached_property
    def _defined(self) -> dict[int, Location]:
        return {number(one, 1): _location(one[3][0]) for one in map(parsed, self._message.get(1, ()))}

    def _temporary(self) -> Iterator[Message]:
        """As XLA's own IsPreallocatedTempBuffer: no argument, no constant, no output, of no single thread."""
        for allocation in map(parsed, self._message.get(3, ())):
            if not any(number(allocation, flag) for flag in (3, 5, 7, 12)):
                yield allocation


def _location(serialized: memoryview) -> Location:
    location = parsed(serialized)
    return number(location, 4), tuple(numbers(location, 3))


@dataclass(frozen=True)
class Origin:
    """What made a buffer. A lower `rank` explains more."""

    rank: int
    shape: str
    what: str
    place: str


class Module:
    """An `xla.HloModuleProto`: its instructions and the frames of Python they came from."""

    def __init__(self, serialized: bytes) -> None:
        self._message = parsed(serialized)
        self.instructions: dict[int, Message] = {}
        self._roots: dict[int, int] = {}
        self.entry = number(self._message, 6)
        self.schedule = self._scheduled()
        for computation in map(parsed, self._message.get(3, ())):
            self._roots[number(computation, 5)] = number(computation, 6)
            for instruction in map(parsed, computation.get(2, ())):
                self.instructions[number(instruction, 35)] = instruction

    def _scheduled(self) -> dict[int, list[int]]:
        """Computation to its instructions in the order they run; empty where the compiler has not kept it."""
        schedule = parsed(self._message[7][0]) if 7 in self._message else {}
        entries = map(parsed, schedule.get(1, ()))
        return {number(entry, 1): numbers(parsed(entry[2][0]), 1) for entry in entries if 2 in entry}

    def lifetimes(self) -> Lifetimes:
        return Lifetimes(self._in_order())

    def values(self) -> Values:
        return Values(self._in_order())

    def _in_order(self) -> Scheduled:
        return Scheduled(self.instructions, self.schedule, self._roots, self.entry)

    def origin(self, buffer: Location) -> Origin:
        identity, index = buffer
        instruction = self.instructions[identity]
        shape = shape_words(parsed(instruction[3][0]), index)
        written = self._written(instruction)
        maker = self._maker(written) if written is not None else instruction
        place = self._place(maker)
        opcode = text(instruction, 2)
        rank = 3 if not place else 2 if opcode in _CARRIED else 1 if written is None else 0
        return Origin(rank, shape, _operation(maker, stacked=written is not None), place)

    def _written(self, instruction: Message) -> Message | None:
        """What a loop writes into this buffer, a slice at a time: a scan stacks what it keeps."""
        opcode = text(instruction, 2)
        if opcode == "fusion":
            called = numbers(instruction, 38)
            instruction = self.instructions[self._roots[called[0]]] if called else instruction
            opcode = text(instruction, 2)
        return self.instructions[numbers(instruction, 36)[1]] if opcode == "dynamic-update-slice" else None

    def _maker(self, instruction: Message) -> Message:
        """Back through what only passes a value on, and into fusions, as long as that has no place of its own."""
        while not self._place(instruction):
            if text(instruction, 2) == "fusion" and numbers(instruction, 38):
                instruction = self.instructions[self._roots[numbers(instruction, 38)[0]]]
            elif text(instruction, 2) in _MOVED and numbers(instruction, 36):
                instruction = self.instructions[numbers(instruction, 36)[0]]
            else:
                break
        return instruction

    def _place(self, instruction: Message) -> str:
        """`plimsoll/models/decoder.py:124`, of the innermost line that is not a library's; empty if there is none."""
        metadata = parsed(instruction[7][0]) if 7 in instruction else {}
        frames = list(self._frames(number(metadata, 15)))
        if not frames and number(metadata, 4):  # one line, without the stack: older compilers
            frames = [(text(metadata, 3), number(metadata, 4))]
        return next((f"{_short(file)}:{line}" for file, line in frames if not _is_library(file)), "")

    def _frames(self, identity: int) -> Iterator[tuple[str, int]]:
        """File and line, innermost first. Ids count from 1; 0 is none."""
        files, locations, frames = self._stack
        while identity:
            frame = frames[identity - 1]
            location = locations[number(frame, 1) - 1]
            yield files[number(location, 1) - 1], number(location, 3)
            identity = number(frame, 2)

    @cached_property
    def _stack(self) -> tuple[list[str], list[Message], list[Message]]:
        index = parsed(self._message[17][0]) if 17 in self._message else {}
        files = [bytes(name).decode() for name in index.get(1, ())]
        return files, [parsed(one) for one in index.get(3, ())], [parsed(one) for one in index.get(4, ())]


def _operation(instruction: Message, *, stacked: bool) -> str:
    """`dot_general, backward, kept by a loop`: JAX's name of the operation, else the compiler's."""
    metadata = parsed(instruction[7][0]) if 7 in instruction else {}
    name = text(metadata, 2)
    words = [name.rsplit("/", 1)[-1] or text(instruction, 2)]
    words += ["backward"] if "transpose(" in name else []
    words += ["stacked by a loop"] if stacked else []
    return ", ".join(words)


def shape_words(shape: Message, index: tuple[int, ...]) -> str:
    """`float32[256,512]`, of the part of a tuple at `index`."""
    for at in index:
        shape = parsed(shape[4][at])
    dtype = number(shape, 2)
    if dtype == 13:
        return "tuple"
    return f"{DTYPES.get(dtype, f'dtype {dtype}')}[{','.join(str(size) for size in numbers(shape, 3))}]"


def _is_library(file: str) -> bool:
    if file.endswith(HELPERS):
        return True
    parts = PurePath(file).parts
    packages = (part for part, folder in zip(parts[1:], parts, strict=False) if folder.endswith("-packages"))
    return any(package in LIBRARIES for package in packages)


def _short(file: str) -> str:
    """Our own files from the package on, others from the folder of the command on, if they lie in it."""
    path = PurePath(file)
    for base in (Path(__file__).parents[3], Path.cwd()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return file
