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
from plimsoll.planner.hlo.shapes import leaves, padded_bytes

_SAME = """
    tuple bitcast while optimization-barrier add-dependency all-reduce-start all-reduce-done all-gather-start
    collective-permute-start async-start async-update copy-done
"""
SAME = {*_SAME.split(), *UPDATES}
"""Operations whose first arrays are those of their operands."""
RECEIVED = ("all-gather-done", "collective-permute-done", "async-done")
"""Operations on what is sent, and what arrives: their arrays are the latter."""
CALLS = ("while", "conditional", "call", "async-start")
"""Operations that run computations whose values have bytes of their own; those of a fusion or a sum have none."""


class Values:
    """Classes of values that share their bytes. A value is an array, perhaps in a tuple."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._same_as: dict[Location, Location] = {}
        self._bytes: dict[Location, int] = {}
        self._excluded = arrays_of(module, module.roots[module.entry])
        self._visit(module.entry)

    def temporary(self) -> list[tuple[int, set[Location]]]:
        """Returns the bytes and the values of each class of temporaries."""
        excluded = {self._first(value) for value in self._excluded}
        classes: dict[Location, set[Location]] = {}
        for value in self._bytes:
            classes.setdefault(self._first(value), set()).add(value)
        sized = {first: max(self._bytes[value] for value in values) for first, values in classes.items()}
        return [(sized[first], values) for first, values in classes.items() if sized[first] and first not in excluded]

    def _visit(self, computation: int) -> None:
        """Adds the values of a computation, and of those that it calls."""
        module = self._module
        inputs = ("constant", "parameter") if computation == module.entry else ("constant",)
        for identity in module.schedule[computation]:
            instruction = module.instructions[identity]
            for index, shape in leaves(instruction.shape):
                self._bytes[identity, index] = padded_bytes(shape)
                if instruction.opcode in inputs or shape.layout.memory_space:
                    self._excluded.append((identity, index))
            for value, other in passed_on(module, instruction):
                self._same_as[self._first(value)] = self._first(other)
            for called in module.scheduled_calls(identity) if instruction.opcode in CALLS else ():
                self._visit(called)

    def _first(self, value: Location) -> Location:
        """Returns the value that stands for the class of this one."""
        first = value
        while self._same_as.get(first, first) != first:
            first = self._same_as[first]
        self._same_as[value] = first
        return first


def arrays_of(module: Module, *instructions: int) -> list[Location]:
    """Returns the arrays that instructions return, one after another."""
    return [(each, index) for each in instructions for index, _ in leaves(module.instructions[each].shape)]


def passed_on(module: Module, instruction: Any) -> Iterator[tuple[Location, Location]]:
    """Yields values of an instruction, each with the one whose bytes it has."""
    opcode = instruction.opcode
    results = arrays_of(module, instruction.id)
    operands = arrays_of(module, *instruction.operand_ids)
    if opcode in SAME:
        yield from zip(results, operands, strict=False)
    elif opcode == "copy-start":  # (to, from, context)
        yield from zip(results[1:], operands, strict=False)
    elif opcode == "get-tuple-element":
        element = [operand for operand in operands if operand[1][0] == instruction.tuple_index]
        yield from zip(results, element, strict=True)
    elif opcode in RECEIVED:
        received = [operand for operand in operands if operand[1][0] > 0]
        yield from zip(results, received, strict=False)
    for alias in instruction.output_operand_aliasing:
        operand = instruction.operand_ids[alias.operand_index]
        yield (instruction.id, tuple(alias.output_shape_index)), (operand, tuple(alias.operand_shape_index))
    if opcode == "fusion":
        yield from _updated_in(module, instruction)
    elif opcode in CALLS:
        yield from _called_by(module, instruction)


def _called_by(module: Module, call: Any) -> Iterator[tuple[Location, Location]]:
    """Yields results of what is called with the call's own, and parameters with its operands."""
    called = module.scheduled_calls(call.id)
    results = arrays_of(module, call.id)
    if call.opcode == "async-start":
        results = [result for result in results if result[1][0] > 0]
    for computation in called[:1] if call.opcode == "while" else called:  # of a loop only the body
        yield from zip(arrays_of(module, module.roots[computation]), results, strict=False)

    for number, computation in enumerate(called):
        operands = call.operand_ids[number + 1 :] if call.opcode == "conditional" else call.operand_ids
        for identity in module.schedule[computation]:
            parameter = module.instructions[identity]
            if parameter.opcode == "parameter":
                given = arrays_of(module, operands[parameter.parameter_number])
                yield from zip(arrays_of(module, identity), given, strict=True)


def _updated_in(module: Module, fusion: Any) -> Iterator[tuple[Location, Location]]:
    """Yields the results that a fusion's computation updates in place, with the operands that it updates."""
    root = module.instructions[module.roots[fusion.called_computation_ids[0]]]
    written = root.operand_ids if root.opcode == "tuple" else [root.id]
    for result, identity in zip(arrays_of(module, fusion.id), written, strict=False):
        update = module.behind_bitcasts(identity)
        if update.opcode in UPDATES:
            updated = module.behind_bitcasts(update.operand_ids[0])
            if updated.opcode == "parameter":
                yield result, (fusion.operand_ids[updated.parameter_number], ())
