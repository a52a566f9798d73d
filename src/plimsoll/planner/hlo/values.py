"""Which values of a scheduled module share their bytes, where the compiler does not report its buffer assignment.

The compilers for GPUs and TPUs that are not here do not. The module itself says what XLA must put into the same bytes:
what a tuple, its element or a bitcast passes on; the state of a loop, from its operand to its result; what is
updated in place. Each such class is a place of its own here, of the size of its shape as it is laid out. Arguments,
results and constants are no temporaries; nor is what is placed in another memory (`S(1)`, a TPU's own on the chip).

The compiler does not say what else takes turns in the same bytes, and `buffers.at_peak` needs only what is alive at the
same time. The rules are those of xla/hlo/analysis/hlo_dataflow_analysis.cc (GetInPlaceInputOutputPairs). An operation
may besides write over an operand which nothing reads later. That is left out: the compiler for GPUs does so too
seldom (docs/chips.md has the sums).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plimsoll.planner.hlo.kernels import UPDATES
from plimsoll.planner.hlo.module import Location, Module
from plimsoll.planner.hlo.shapes import TUPLE, leaves, padded_bytes, part_at

Index = tuple[int, ...]
Pair = tuple[Location, Location]

_WHOLE = ("bitcast", "optimization-barrier", "all-reduce-start", "all-reduce-done", "add-dependency", "async-update")
_PASSED: dict[str, tuple[Index, Index]] = dict.fromkeys((*_WHOLE, "while"), ((), ())) | {
    "copy-start": ((1,), ()),  # (to, from, context)
    "copy-done": ((), (0,)),
    "all-gather-done": ((), (1,)),
    "collective-permute-done": ((), (1,)),
    "async-done": ((), (1,)),
}
"""Operation to the part of its result that is in the bytes of a part of its first operand."""
_STARTS = ("all-gather-start", "collective-permute-start", "async-start")
"""Operations whose result is what they read, one or several arrays, and where it goes."""
_CALLS = ("while", "conditional", "call", "async-start")
"""Operations that run computations whose values have bytes of their own; those of a fusion or a sum have none."""


class Values:
    """Classes of values that share their bytes."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._same_as: dict[Location, Location] = {}
        self._bytes: dict[Location, int] = {}
        self._excluded: list[Location] = []
        self._visit(module.entry, set())
        root = module.roots[module.entry]
        self._excluded += [(root, index) for index, _ in leaves(module.instructions[root].shape)]

    def temporary(self) -> list[tuple[int, set[Location]]]:
        """Returns the bytes and the values of each class of temporaries."""
        excluded = {self._first(value) for value in self._excluded}
        classes: dict[Location, set[Location]] = {}
        for value in self._bytes:
            classes.setdefault(self._first(value), set()).add(value)
        sized = {first: max(self._bytes[value] for value in values) for first, values in classes.items()}
        return [(sized[first], values) for first, values in classes.items() if sized[first] and first not in excluded]

    def _visit(self, computation: int, seen: set[int]) -> None:
        """Adds the values of a computation, and of those that it calls."""
        if computation in seen:
            return
        seen.add(computation)
        for identity in self._module.schedule[computation]:
            instruction = self._module.instructions[identity]
            opcode = instruction.opcode
            is_input = opcode == "constant" or (opcode == "parameter" and computation == self._module.entry)
            for index, shape in leaves(instruction.shape):
                self._bytes[identity, index] = padded_bytes(shape)
                if is_input or shape.layout.memory_space:
                    self._excluded.append((identity, index))
            for value, other in passed_on(self._module, instruction):
                self._unite(value, other)
            for called in self._module.scheduled_calls(identity) if opcode in _CALLS else ():
                self._visit(called, seen)

    def _unite(self, value: Location, other: Location) -> None:
        """Puts two values into the same bytes, part by part where they are tuples."""
        (identity, index), (other_identity, other_index) = value, other
        for inside, _ in leaves(part_at(self._module.instructions[identity].shape, index)):
            self._same_as[self._first((identity, index + inside))] = self._first((other_identity, other_index + inside))

    def _first(self, value: Location) -> Location:
        """Returns the value that stands for the class of this one."""
        first = value
        while self._same_as.get(first, first) != first:
            first = self._same_as[first]
        self._same_as[value] = first
        return first


def passed_on(module: Module, instruction: Any) -> Iterator[Pair]:
    """Yields values of an instruction, each with the one whose bytes it has."""
    identity, opcode = instruction.id, instruction.opcode
    operands: list[Location] = [(operand, ()) for operand in instruction.operand_ids]
    if opcode == "tuple":
        for at, operand in enumerate(operands):
            yield (identity, (at,)), operand
    elif opcode == "get-tuple-element":
        yield (identity, ()), (operands[0][0], (instruction.tuple_index,))
    elif opcode in _PASSED:
        of_result, of_operand = _PASSED[opcode]
        yield (identity, of_result), (operands[0][0], of_operand)
    elif opcode in _STARTS:
        for at, operand in enumerate(operands):
            is_several = opcode == "async-start" or len(operands) > 1
            yield (identity, (0, at) if is_several else (0,)), operand
    elif opcode in UPDATES and instruction.shape.element_type != TUPLE:
        yield (identity, ()), operands[0]
    for alias in instruction.output_operand_aliasing:
        operand, _ = operands[alias.operand_index]
        yield (identity, tuple(alias.output_shape_index)), (operand, tuple(alias.operand_shape_index))
    if opcode == "fusion":
        yield from _updated_in(module, instruction)
    elif opcode in _CALLS:
        yield from _called_by(module, instruction)


def _called_by(module: Module, call: Any) -> Iterator[Pair]:
    """Yields results of what is called with the call's own, and parameters with its operands."""
    opcode = call.opcode
    called = module.scheduled_calls(call.id)
    with_result = called[:1] if opcode == "while" else called  # a loop's condition has none
    for computation in with_result:
        yield (module.roots[computation], ()), (call.id, (1,) if opcode == "async-start" else ())

    for number, computation in enumerate(called):
        operands = call.operand_ids[number + 1 :] if opcode == "conditional" else call.operand_ids
        for identity in module.schedule[computation]:
            parameter = module.instructions[identity]
            if parameter.opcode == "parameter":
                yield (identity, ()), (operands[parameter.parameter_number], ())


def _updated_in(module: Module, fusion: Any) -> Iterator[Pair]:
    """Yields the results that a fusion's computation updates in place, with the operands that it updates."""
    root = module.instructions[module.roots[fusion.called_computation_ids[0]]]
    several = root.opcode == "tuple"
    for at, result in enumerate(root.operand_ids if several else [root.id]):
        update = module.behind_bitcasts(result)
        if update.opcode in UPDATES:
            updated = module.behind_bitcasts(update.operand_ids[0])
            if updated.opcode == "parameter":
                yield (fusion.id, (at,) if several else ()), (fusion.operand_ids[updated.parameter_number], ())
