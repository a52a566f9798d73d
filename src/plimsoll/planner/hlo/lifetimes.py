"""Lifetimes of the values in a scheduled module: from the instruction that computes a value to its last use.

A time is the index of an instruction in the order of execution. The bodies of loops and branches count once, before
their caller. Tuples, their elements and bitcasts only pass a value on, so a use of one of them is a use of the value. A
loop uses its operand when it begins. The parameter and the result of its body, and the result of the loop, are separate
values with lifetimes of their own in the same bytes.
"""

from __future__ import annotations

from plimsoll.planner.hlo.module import Location, Module

_SAME = ("bitcast", "optimization-barrier")


class Lifetimes:
    """Lifetimes of a module's values: the time of each value's computation, and of its last use."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._time: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._needed_at: dict[int, int] = {}
        self._users: dict[int, list[int]] = {}
        self._last: dict[Location, int] = {}
        self._run(module.entry)
        self._needed_at[module.roots[module.entry]] = len(self._time)

    def of(self, value: Location) -> tuple[int, int]:
        """Returns the time at which a value is computed, and the time of its last use."""
        return self._time.get(value[0], 0), self._last_use(value)

    def _run(self, computation: int) -> None:
        """Gives each instruction of a computation, and of the computations that it calls, a time."""
        for identity in self._module.schedule[computation]:
            for operand in self._module.instructions[identity].operand_ids:
                self._users.setdefault(operand, []).append(identity)
            calls = self._module.scheduled_calls(identity)
            self._begins[identity] = len(self._time)
            for called in calls:
                self._run(called)
            self._time[identity] = len(self._time)
            for called in calls:  # the result of the called computation is alive until the caller ends
                self._needed_at[self._module.roots[called]] = self._time[identity]

    def _last_use(self, value: Location) -> int:
        if value not in self._last:
            identity, _ = value
            itself = max(self._time.get(identity, 0), self._needed_at.get(identity, 0))
            self._last[value] = max([itself, *(self._use(value, user) for user in self._users.get(identity, ()))])
        return self._last[value]

    def _use(self, value: Location, user: int) -> int:
        """Returns the last time at which instruction `user`, or one that gets the value from it, uses the value."""
        identity, index = value
        instruction = self._module.instructions[user]
        opcode, now = instruction.opcode, self._time[user]
        if opcode == "while":
            return self._begins[user]
        if opcode == "get-tuple-element" and index:
            if instruction.tuple_index != index[0]:
                return 0  # the instruction takes another element
            passed = [index[1:]]
        elif opcode == "tuple":
            passed = [(at, *index) for at, operand in enumerate(instruction.operand_ids) if operand == identity]
        else:
            passed = [index] if opcode in _SAME else []
        return max([now, *(self._last_use((user, index)) for index in passed)])
