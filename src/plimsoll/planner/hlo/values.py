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

from collections.abc import Sequence

from plimsoll.planner.hlo.module import Location, Module
from plimsoll.planner.hlo.shapes import TUPLE, leaves, padded_bytes, part_at

_SAME = ("bitcast", "optimization-barrier", "all-reduce-start", "all-reduce-done", "add-dependency", "async-update")
_UPDATES = ("dynamic-update-slice", "scatter")
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
            if (first := self._first(value)) not in excluded:
                classes.setdefault(first, set()).add(value)
        sized = [(max(self._bytes[value] for value in values), values) for values in classes.values()]
        return [(size, values) for size, values in sized if size]

    def _visit(self, computation: int, seen: set[int]) -> None:
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
            self._pass_on(identity, opcode)
            if opcode in _CALLS:
                for called in self._module.scheduled_calls(identity):
                    self._visit(called, seen)

    def _pass_on(self, identity: int, opcode: str) -> None:
        """Unites the values of an instruction with the operands whose bytes they share."""
        instruction = self._module.instructions[identity]
        operands = instruction.operand_ids
        if opcode in _SAME or (opcode in _UPDATES and instruction.shape.element_type != TUPLE):
            self._unite((identity, ()), (operands[0], ()))
        elif opcode == "get-tuple-element":
            self._unite((identity, ()), (operands[0], (instruction.tuple_index,)))
        elif opcode == "tuple":
            for at, operand in enumerate(operands):
                self._unite((identity, (at,)), (operand, ()))
        elif opcode == "fusion":
            self._fusion(identity, operands)
        elif opcode in _CALLS:
            self._call(identity, opcode, operands)
        elif opcode == "copy-start":  # (to, from, context)
            self._unite((identity, (1,)), (operands[0], ()))
        elif opcode == "copy-done":
            self._unite((identity, ()), (operands[0], (0,)))
        elif opcode in ("all-gather-start", "collective-permute-start"):  # (from, to)
            for at, operand in enumerate(operands):
                self._unite((identity, (0,) if len(operands) == 1 else (0, at)), (operand, ()))
        elif opcode in ("all-gather-done", "collective-permute-done", "async-done"):
            self._unite((identity, ()), (operands[0], (1,)))
        for alias in instruction.output_operand_aliasing:
            operand = operands[alias.operand_index], tuple(alias.operand_shape_index)
            self._unite((identity, tuple(alias.output_shape_index)), operand)

    def _call(self, identity: int, opcode: str, operands: Sequence[int]) -> None:
        calls, roots = self._module.scheduled_calls(identity), self._module.roots
        if opcode == "while":
            body, *_ = calls
            self._unite((identity, ()), (operands[0], ()))
            self._unite((roots[body], ()), (identity, ()))
            arguments = [(called, [operands[0]]) for called in calls]
        elif opcode == "conditional":
            for called in calls:
                self._unite((roots[called], ()), (identity, ()))
            arguments = [(called, [operand]) for called, operand in zip(calls, operands[1:], strict=True)]
        else:
            self._unite((roots[calls[0]], ()), (identity, (1,) if opcode == "async-start" else ()))
            arguments = [(calls[0], operands)]
        if opcode == "async-start":
            for at, operand in enumerate(operands):
                self._unite((identity, (0, at)), (operand, ()))
        for called, operands_of_call in arguments:
            for parameter in self._module.schedule[called]:
                instruction = self._module.instructions[parameter]
                if instruction.opcode == "parameter":
                    self._unite((parameter, ()), (operands_of_call[instruction.parameter_number], ()))

    def _fusion(self, identity: int, operands: Sequence[int]) -> None:
        """Unites the results that a fusion's computation updates in place with the operands that it updates."""
        instructions = self._module.instructions
        root = self._module.roots[instructions[identity].called_computation_ids[0]]
        several = instructions[root].opcode == "tuple"
        for at, result in enumerate(instructions[root].operand_ids if several else [root]):
            update = instructions[self._behind_bitcasts(result)]
            if update.opcode not in _UPDATES:
                continue
            updated = instructions[self._behind_bitcasts(update.operand_ids[0])]
            if updated.opcode == "parameter":
                self._unite((identity, (at,) if several else ()), (operands[updated.parameter_number], ()))

    def _behind_bitcasts(self, identity: int) -> int:
        while self._module.instructions[identity].opcode == "bitcast":
            identity = self._module.instructions[identity].operand_ids[0]
        return identity

    def _unite(self, value: Location, other: Location) -> None:
        """Puts two values into the same bytes, part by part where they are tuples."""
        (identity, index), (other_identity, other_index) = value, other
        for inside, _ in leaves(part_at(self._module.instructions[identity].shape, index)):
            self._same_as[self._first((identity, index + inside))] = self._first((other_identity, other_index + inside))

    def _first(self, value: Location) -> Location:
        """Returns the value that stands for the class of this one."""
        path = []
        while self._same_as.get(value, value) != value:
            path.append(value)
            value = self._same_as[value]
        for passed in path:
            self._same_as[passed] = value
        return value
