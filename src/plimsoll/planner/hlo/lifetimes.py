"""When the values of a scheduled module are alive: from the instruction that computes one to its last use.

Time counts instructions in the order they run, the bodies of loops and branches once, in the place of their caller.
Tuples, their elements and bitcasts only pass a value on, so a use of theirs is a use of the value. A loop takes its
state over: its operand is used when it begins; the parameter of its body, the body's result and the loop's own
are values with lives of their own, in the same bytes.
"""

from __future__ import annotations

from plimsoll.planner.hlo.module import Location, Module

_SAME = ("bitcast", "optimization-barrier")


class Lifetimes:
    """First and last times of a module's values."""

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
        """Returns the first and the last time at which a value is alive."""
        return self._time.get(value[0], 0), self._last_use(value)

    def _run(self, computation: int) -> None:
        """Counts the instructions of a computation and of those it calls."""
        for identity in self._module.schedule[computation]:
            for operand in self._module.instructions[identity].operand_ids:
                self._users.setdefault(operand, []).append(identity)
            calls = self._module.scheduled_calls(identity)
            self._begins[identity] = len(self._time)
            for called in calls:
                self._run(called)
            self._time[identity] = len(self._time)
            for called in calls:  # its result is needed until the caller is done
                self._needed_at[self._module.roots[called]] = self._time[identity]

    def _last_use(self, value: Location) -> int:
        if value not in self._last:
            identity, _ = value
            itself = max(self._time.get(identity, 0), self._needed_at.get(identity, 0))
            self._last[value] = max([itself, *(self._use(value, user) for user in self._users.get(identity, ()))])
        return self._last[value]

    def _use(self, value: Location, user: int) -> int:
        """Returns when `user` is done with the value, or with the values that it passes it on to."""
        identity, index = value
        instruction = self._module.instructions[user]
        opcode, now = instruction.opcode, self._time[user]
        if opcode == "while":
            return self._begins[user]
        if opcode == "get-tuple-element" and index:
            if instruction.tuple_index != index[0]:
                return 0  # another element
            passed = [index[1:]]
        elif opcode == "tuple":
            passed = [(at, *index) for at, operand in enumerate(instruction.operand_ids) if operand == identity]
        else:
            passed = [index] if opcode in _SAME else []
        return max([now, *(self._last_use((user, index)) for index in passed)])
