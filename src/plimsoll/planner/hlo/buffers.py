"""The largest temporaries of a compiled function at its peak, each with its source line.

The compiler's buffer assignment gives the bytes of each temporary in the step's allocation (messages.py). The optimised
module gives the operation that computed the temporary, with its line of Python (module.py). The module's schedule gives
the temporary's lifetime (lifetimes.py). Without a schedule, the largest of the temporaries that share bytes is listed.
Listed buffers are always disjoint, and their sum is at most the allocation.

Compilers for chips that are not in this machine report no buffer assignment. For them the schedule gives the lifetimes,
and `values.py` the values that share bytes. The docstring of `values.py` compares the sums with the allocations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from plimsoll.planned import Buffer
from plimsoll.planner.hlo.lifetimes import Lifetimes, Location
from plimsoll.planner.hlo.messages import BufferAssignmentProto
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.values import Values

LISTED = 8
"""Number of buffers to list."""


def largest_temporaries(compiled: Any, *, most: int = LISTED) -> list[Buffer]:
    """Returns the largest temporaries of a `jax.stages.Compiled`, largest first.

    Returns an empty list if the backend reports neither assignment nor schedule.
    """
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
    """Returns the temporaries alive at the peak; without a schedule, the largest disjoint temporaries."""
    places = assignment.temporary_places()
    if module.schedule:
        places = at_peak(places, Lifetimes(module), assignment.aliases())
    return _named(places, module)


def scheduled(module: Module) -> list[Buffer]:
    """Returns the temporaries alive at the peak, from the schedule alone. No two of them share bytes."""
    places, aliases = [], {}
    for allocation, (size, values) in enumerate(Values(module).temporary()):
        places.append(Place(allocation, 0, size, sorted(values)))
        aliases |= dict.fromkeys(values, values)
    return _named(at_peak(places, Lifetimes(module), aliases), module)


@dataclass(frozen=True)
class Place:
    """A range of bytes in an allocation, and all values that occupy exactly this range at some time."""

    allocation: int
    offset: int
    size: int
    values: list[Location] = field(default_factory=list)


class Life(NamedTuple):
    """Lifetime of a value, with the index of its place (range of bytes)."""

    begin: int
    end: int
    place: int
    value: Location


def at_peak(places: Sequence[Place], lifetimes: Lifetimes, aliases: Mapping[Location, set[Location]]) -> list[Place]:
    """Returns the places (ranges of bytes) in use at the peak, each with the values in it then and their aliases."""
    values: dict[int, list[Location]] = {}
    for life in lives_at_peak(places, lifetimes):
        names = aliases.get(life.value, set()) - {life.value}
        others = [other for other in places[life.place].values if other in names]
        values.setdefault(life.place, []).extend([life.value, *others])
    return [replace(places[number], values=found) for number, found in values.items()]


def lives_at_peak(places: Sequence[Place], lifetimes: Lifetimes) -> list[Life]:
    """Returns the lifetimes of the values that are alive at the peak."""
    lives = [Life(*lifetimes.of(value), number, value) for number, place in enumerate(places) for value in place.values]
    lives.sort(key=lambda life: life.begin)

    # The sum of sizes is an upper bound, because places may overlap. Compute the union only if it can be a new peak.
    alive: list[Life] = []
    peak: list[Life] = []
    most = -1
    for life in lives:
        alive = [other for other in alive if other.end >= life.begin] + [life]
        in_use = [places[number] for number in {other.place for other in alive}]
        if sum(place.size for place in in_use) > most:
            size = _union(in_use)
            if size > most:
                most, peak = size, alive
    return peak


def _union(places: Iterable[Place]) -> int:
    """Returns the size of the union of the places (ranges of bytes), in bytes."""
    total, reached = 0, (-1, 0)
    for allocation, offset, size in sorted({(place.allocation, place.offset, place.size) for place in places}):
        start = max(offset, reached[1]) if reached[0] == allocation else offset
        total += max(0, offset + size - start)
        reached = allocation, max(start, offset + size)
    return total


def _named(places: Iterable[Place], module: Module) -> list[Buffer]:
    """Returns a buffer for each place (range of bytes), largest first, described by the most useful of its values.

    Places that overlap a larger place are left out.
    """
    buffers = []
    taken: dict[int, list[tuple[int, int]]] = {}
    for place in sorted(places, key=lambda place: (-place.size, place.allocation, place.offset)):
        start, end = place.offset, place.offset + place.size
        others = taken.setdefault(place.allocation, [])
        if all(end <= low or high <= start for low, high in others):
            others.append((start, end))
            origin = min(map(module.origin, place.values), key=lambda origin: origin.rank)
            buffers.append(Buffer(bytes=place.size, shape=origin.shape, what=origin.what, place=origin.place))
    return buffers


class Assignment:
    """Reader of an `xla.BufferAssignmentProto`: the temporary allocations, and the values in them."""

    def __init__(self, serialized: bytes) -> None:
        self._message = BufferAssignmentProto.FromString(serialized)
        self._values = {buffer.id: _value(buffer.defined_at) for buffer in self._message.logical_buffers}
        self.temporary = [each for each in self._message.buffer_allocations if is_temporary(each)]

    def temporary_places(self) -> list[Place]:
        """Returns the ranges of bytes that values occupy in all temporary allocations, each with these values."""
        places: dict[tuple[int, int, int], Place] = {}
        for allocation in self.temporary:
            for assigned in allocation.assigned:
                at = allocation.index, assigned.offset, assigned.size
                places.setdefault(at, Place(*at)).values.append(self._values[assigned.logical_buffer_id])
        return list(places.values())

    def aliases(self) -> dict[Location, set[Location]]:
        """Returns the aliases of each value: other locations of its bytes, like a loop's state before and after."""
        aliases: dict[Location, set[Location]] = {}
        for alias in self._message.buffer_aliases:
            value, other = self._values[alias.source_buffer_id], _value(alias.location)
            aliases.setdefault(value, set()).add(other)
            aliases.setdefault(other, set()).add(value)
        return aliases


def is_temporary(allocation: Any) -> bool:
    """Returns True if an allocation is temporary by XLA's definition (IsPreallocatedTempBuffer)."""
    is_given = allocation.is_entry_computation_parameter or allocation.is_constant
    return not (is_given or allocation.maybe_live_out or allocation.is_thread_local)


def _value(location: Any) -> Location:
    return location.instruction_id, tuple(location.shape_index)
