"""Which values of a scheduled module lie in the same bytes, where the compiler keeps its buffer assignment to itself.

The compilers for GPUs and TPUs that are not here do. What XLA must put into the same bytes follows from the module:
what a tuple, its element or a bitcast passes on; the state of a loop, from what it is given to what it returns; what is
updated in place. Each such class is a place of its own here, of the size of its shape as it is laid out. Arguments,
results and constants are no temporaries; nor is what lies in another memory (`S(1)`, a TPU's own on the chip).

What else takes turns in the same bytes the compiler does not say, and `buffers.at_peak` needs only what is alive at the
same time. The rules are those of xla/hlo/analysis/hlo_dataflow_analysis.cc (GetInPlaceInputOutputPairs). That an
operation may besides write over an operand which nothing reads later is left out: the compiler for GPUs does so too
seldom (docs/chips.md has the sums).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from plimsoll.planner.hlo.lifetimes import Location, Scheduled
from plimsoll.planner.hlo.protobuf import Message, number, numbers, parsed, text

_SAME = ("bitcast", "optimization-barrier", "all-reduce-start", "all-reduce-done", "add-dependency")
_UPDATED = ("dynamic-update-slice", "scatter")
_CALLS = ("while", "conditional", "call", "async-start")
"""What runs computations whose values have bytes of their own; those of a fusion or a sum have none."""
_TUPLE, _TOKEN, _OPAQUE = 13, 17, 14
_BITS = {1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 8, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64, 15: 64, 16: 16, 18: 128,
         19: 8, 20: 8, 21: 4, 22: 4}  # fmt: skip
"""`xla.PrimitiveType` to bits; float8 of other kinds are from 23 on."""


class Values:
    def __init__(self, module: Scheduled) -> None:
        self._instructions, self._schedule, self._roots, self._entry = module
        entry, roots = module.entry, module.roots
        self._same_as: dict[Location, Location] = {}
        self._locations: dict[Location, int] = {}
        self._apart: list[Location] = []
        self._computation(entry, set())
        root = roots[entry]
        self._apart += [(root, index) for index, _ in leaves(self._shape(root))]

    def temporary(self) -> list[tuple[int, set[Location]]]:
        """Bytes and the values that lie in them, of each class."""
        apart = {self._first(location) for location in self._apart}
        classes: dict[Location, set[Location]] = {}
        for location in self._locations:
            if (first := self._first(location)) not in apart:
                classes.setdefault(first, set()).add(location)
        sizes = {first: max(self._locations[one] for one in members) for first, members in classes.items()}
        return [(sizes[first], members) for first, members in classes.items() if sizes[first]]

    def _computation(self, computation: int, seen: set[int]) -> None:
        if computation in seen:
            return
        seen.add(computation)
        for identity in self._schedule[computation]:
            instruction = self._instructions[identity]
            opcode = text(instruction, 2)
            for index, shape in leaves(self._shape(identity)):
                self._locations[identity, index] = padded_bytes(shape)
                if (
                    opcode == "constant"
                    or _memory_space(shape)
                    or (opcode == "parameter" and computation == self._entry)
                ):
                    self._apart.append((identity, index))
            self._pass_on(identity, opcode)
            if opcode in _CALLS:
                for called in self._called(identity):
                    self._computation(called, seen)

    def _pass_on(self, identity: int, opcode: str) -> None:
        operands = numbers(self._instructions[identity], 36)
        if opcode in _SAME:
            self._unite((identity, ()), (operands[0], ()))
        elif opcode == "get-tuple-element":
            self._unite((identity, ()), (operands[0], (number(self._instructions[identity], 13),)))
        elif opcode == "tuple":
            for at, operand in enumerate(operands):
                self._unite((identity, (at,)), (operand, ()))
        elif opcode in _UPDATED and number(parsed(self._instructions[identity][3][0]), 2) != _TUPLE:
            self._unite((identity, ()), (operands[0], ()))
        elif opcode == "fusion":
            self._fusion(identity, operands)
        elif opcode in _CALLS:
            self._call(identity, opcode, operands)
        elif opcode == "copy-start":  # (to, from, context)
            self._unite((identity, (1,)), (operands[0], ()))
        elif opcode == "copy-done":
            self._unite((identity, ()), (operands[0], (0,)))
        elif opcode in ("all-gather-start", "collective-permute-start"):  # (from, to)
            one = len(operands) == 1
            for at, operand in enumerate(operands):
                self._unite((identity, (0,) if one else (0, at)), (operand, ()))
        elif opcode in ("all-gather-done", "collective-permute-done", "async-done"):
            self._unite((identity, ()), (operands[0], (1,)))
        elif opcode == "async-update":
            self._unite((identity, ()), (operands[0], ()))
        for aliased in map(parsed, self._instructions[identity].get(74, ())):  # OutputOperandAliasing
            operand = operands[number(aliased, 2)], tuple(numbers(aliased, 3))
            self._unite((identity, tuple(numbers(aliased, 1))), operand)

    def _call(self, identity: int, opcode: str, operands: Sequence[int]) -> None:
        called = self._called(identity)
        if opcode == "while":
            body, *_ = called
            self._unite((identity, ()), (operands[0], ()))
            self._unite((self._roots[body], ()), (identity, ()))
            given = [(one, [operands[0]]) for one in called]
        elif opcode == "conditional":
            for one in called:
                self._unite((self._roots[one], ()), (identity, ()))
            given = [(one, [operand]) for one, operand in zip(called, operands[1:], strict=True)]
        else:
            self._unite((self._roots[called[0]], ()), (identity, (1,) if opcode == "async-start" else ()))
            given = [(called[0], operands)]
        if opcode == "async-start":
            for at, operand in enumerate(operands):
                self._unite((identity, (0, at)), (operand, ()))
        for one, arguments in given:
            for parameter in self._parameters(one):
                self._unite((parameter, ()), (arguments[number(self._instructions[parameter], 9)], ()))

    def _fusion(self, identity: int, operands: Sequence[int]) -> None:
        """What its computation updates in place, of what the fusion is given."""
        root = self._roots[numbers(self._instructions[identity], 38)[0]]
        several = text(self._instructions[root], 2) == "tuple"
        made = numbers(self._instructions[root], 36) if several else [root]
        for at, one in enumerate(made):
            while text(self._instructions[one], 2) == "bitcast":
                one = numbers(self._instructions[one], 36)[0]
            if text(self._instructions[one], 2) not in _UPDATED:
                continue
            updated = numbers(self._instructions[one], 36)[0]
            while text(self._instructions[updated], 2) == "bitcast":
                updated = numbers(self._instructions[updated], 36)[0]
            if text(self._instructions[updated], 2) == "parameter":
                given = operands[number(self._instructions[updated], 9)]
                self._unite((identity, (at,) if several else ()), (given, ()))

    def _called(self, identity: int) -> list[int]:
        return [one for one in numbers(self._instructions[identity], 38) if one in self._schedule]

    def _parameters(self, computation: int) -> list[int]:
        return [one for one in self._schedule[computation] if text(self._instructions[one], 2) == "parameter"]

    def _shape(self, identity: int) -> Message:
        return parsed(self._instructions[identity][3][0])

    def _unite(self, one: Location, other: Location) -> None:
        """Part by part: what is said of a tuple is said of its elements."""
        (identity, index), (theirs, at) = one, other
        for inside, _ in leaves(_part(self._shape(identity), index)):
            self._same_as[self._first((identity, index + inside))] = self._first((theirs, at + inside))

    def _first(self, location: Location) -> Location:
        path = []
        while self._same_as.get(location, location) != location:
            path.append(location)
            location = self._same_as[location]
        for one in path:
            self._same_as[one] = location
        return location


def leaves(shape: Message, index: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Message]]:
    """The arrays in a shape, each with its index."""
    kind = number(shape, 2)
    if kind == _TUPLE:
        for at, part in enumerate(shape.get(4, ())):
            yield from leaves(parsed(part), (*index, at))
    elif kind not in (_TOKEN, _OPAQUE):
        yield index, shape


def _part(shape: Message, index: tuple[int, ...]) -> Message:
    for at in index:
        shape = parsed(shape[4][at])
    return shape


def padded_bytes(shape: Message) -> int:
    """Of an array in its layout: a TPU fills up the tiles of its last axes."""
    sizes, layout = numbers(shape, 3), _layout(shape)
    order = numbers(layout, 1)
    if tiles := layout.get(6):
        tile = numbers(parsed(tiles[0]), 1)[::-1]
        inner = [sizes[axis] for axis in order]
        for at, (size, step) in enumerate(zip(inner, tile, strict=False)):
            inner[at] = -(-size // step) * step if 0 < step < 2**31 else size
        sizes = inner
    bits = number(layout, 7) or _BITS.get(number(shape, 2), 8)
    return -(-math.prod(sizes) * bits // 8)


def _memory_space(shape: Message) -> int:
    return number(_layout(shape), 8)


def _layout(shape: Message) -> Message:
    return parsed(shape[5][0]) if 5 in shape else {}
