"""When the values of a scheduled module are alive: from where one is made to its last use.

Time counts instructions in the order they run, the bodies of loops and branches once, in the place of what calls them.
Tuples, their elements and bitcasts only pass a value on, so a use of theirs is a use of the value. A loop takes its
state over: what it was given is used when it begins; the parameter of its body, the body's result and the loop's own
are values with lives of their own, which lie in the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plimsoll.planner.hlo.protobuf import Message, number, numbers, text

Location = tuple[int, tuple[int, ...]]
"""An instruction, and an index into the tuple it makes; () for all of it."""

_SAME = ("bitcast", "optimization-barrier")


class Scheduled(NamedTuple):
    """A module in the order in which it runs; all by id."""

    instructions: Mapping[int, Message]
    schedule: Mapping[int, Sequence[int]]
    """Computation to its instructions."""
    roots: Mapping[int, int]
    """Computation to the instruction that is its result."""
    entry: int
    """The computation that everything begins with."""


class Lifetimes:
    def __init__(self, module: Scheduled) -> None:
        self._instructions, self._schedule, roots, entry = module
        self._roots = roots
        self._time: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._needed_at: dict[int, int] = {}
        self._users: dict[int, list[int]] = {}
        self._last: dict[Location, int] = {}
        self._run(entry)
        self._needed_at[roots[entry]] = len(self._time)

    def of(self, value: Location) -> tuple[int, int]:
        """First and last time."""
        return self._time.get(value[0], 0), self._last_use(value)

    def _run(self, computation: int) -> None:
        for identity in self._schedule[computation]:
            instruction = self._instructions[identity]
            for operand in numbers(instruction, 36):
                self._users.setdefault(operand, []).append(identity)
            called = [one for one in numbers(instruction, 38) if one in self._schedule]
            self._begins[identity] = len(self._time)
            for one in called:
                self._run(one)
            self._time[identity] = len(self._time)
            for one in called:  # its result is needed until the caller is done
                self._needed_at[self._roots[one]] = self._time[identity]

    def _last_use(self, value: Location) -> int:
        if value not in self._last:
            identity, _ = value
            itself = max(self._time.get(identity, 0), self._needed_at.get(identity, 0))
            self._last[value] = max([itself, *(self._use(value, user) for user in self._users.get(identity, ()))])
        return self._last[value]

    def _use(self, value: Location, user: int) -> int:
        """When `user` is done with the value, or those that it passes it on to."""
        identity, index = value
        instruction = self._instructions[user]
        opcode, now = text(instruction, 2), self._time[user]
        if opcode == "while":
            return self._begins[user]
        if opcode == "get-tuple-element" and index:
            if number(instruction, 13) != index[0]:
                return 0  # another element
            passed = [index[1:]]
        elif opcode == "tuple":
            passed = [(at, *index) for at, operand in enumerate(numbers(instruction, 36)) if operand == identity]
        else:
            passed = [index] if opcode in _SAME else []
        return max([now, *(self._last_use((user, index)) for index in passed)])
