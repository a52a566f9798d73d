"""Slices in a GPU's compiled loops that XLA has a rule for, `offset + round x stride`: does their index follow it?

XLA annotates a slice with the rule where a loop has a known length and the slice's index follows from the loop's
counter. The driver copies such a slice by the rule, and looks at no index. Releases of JAX took the index for the
counter itself (openxla/xla#46231): what is copied lies elsewhere, without a word. Here the index is computed for every
round, from the compiled module, and stands beside the rule.
"""

import itertools
import json
import math
from dataclasses import dataclass

from plimsoll.planner.hlo.kernels import HOST
from plimsoll.planner.hlo.shapes import padded_bytes

INDICES_FROM = {"dynamic-slice": 1, "dynamic-update-slice": 2}
"""Operations, and the number of operands before their indices."""
PASS_ON = ("bitcast", "copy", "convert", "reshape", "broadcast")
"""Operations that leave the value of a scalar as it is."""
ARITHMETIC = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: math.trunc(a / b),
    "remainder": math.fmod,
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: not a,
    "negate": lambda a: -a,
    "select": lambda condition, a, b: a if condition else b,
    "clamp": lambda least, a, most: max(least, min(a, most)),
}
COMPARISONS = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


@dataclass(frozen=True)
class Slice:
    """A slice in a loop, which is of an array in the host's memory, or which XLA copies by a rule."""

    operation: str
    shape: tuple[int, ...]
    """Of the array that it is cut from, or written into."""
    on_host: bool
    ruled: tuple[int, ...] = ()
    """Bytes from the array's start in each round, by the rule; empty where there is none: a kernel reads the index."""
    indexed: tuple[int, ...] = ()
    """Bytes from the array's start in each round, by the index; empty where there is no rule."""

    @property
    def is_wrong(self):
        return self.ruled != self.indexed


def slices(module):
    """Returns the slices in the loops of a `planner.hlo.module.Module` that are of the host's memory or have a rule."""
    found = []
    for path in _paths(module, module.entry, ()):
        *callers, identity = path
        instruction = module.instructions[identity]
        loops = [caller for caller in callers if module.instructions[caller].opcode == "while"]
        if not loops:
            continue
        array = module.instructions[instruction.operand_ids[0]].shape
        on_host = array.layout.memory_space == HOST
        rule = _rule(instruction)
        ruled, indexed = ((), ()) if rule is None else _walks(module, path, loops, rule)
        if on_host or rule is not None:
            found.append(Slice(instruction.opcode, tuple(array.dimensions), on_host, ruled, indexed))
    return found


def _paths(module, computation, callers):
    """Yields every slice, behind the instructions that lead to it from the entry."""
    for identity in module.bodies[computation]:
        instruction, path = module.instructions[identity], (*callers, identity)
        if instruction.opcode in INDICES_FROM:
            yield path
        for called in instruction.called_computation_ids:
            yield from _paths(module, called, path)


def _rule(instruction):
    """Returns offset and stride of a slice's rule in bytes, and its loop, counted from the innermost; or None."""
    config = _config(instruction).get("dynamic_slice_config")
    if config is None:
        return None
    linear = config.get("linear", config)  # as jaxlib 0.12 has it, and as those before do
    names = ("byte_offset", "byte_stride")
    assert {*linear} <= {*names, "loop_index"}, f"a rule of another form: {config}"
    return *(int(linear.get(name, 0)) for name in names), int(config.get("loop_index", 0))


def _walks(module, path, loops, rule):
    """Returns the bytes from an array's start to the slice in each round of its loops, by the rule and by the index."""
    instruction = module.instructions[path[-1]]
    array, *others = (module.instructions[operand].shape for operand in instruction.operand_ids)
    first = INDICES_FROM[instruction.opcode]
    part = instruction.shape if first == 1 else others[0]
    last = [size - taken for size, taken in zip(array.dimensions, part.dimensions, strict=True)]
    offset, stride, loop = rule
    ruled, indexed = [], []
    for rounds in itertools.product(*(range(_trips(module.instructions[loop])) for loop in loops)):
        ruled.append(offset + rounds[-1 - loop] * stride)
        values = _Values(module, path, dict(zip(loops, rounds, strict=True)))
        index = [values.of(operand, len(path) - 1) for operand in instruction.operand_ids[first:]]
        inside = [max(0, min(at, most)) for at, most in zip(index, last, strict=True)]
        indexed.append(sum(at * stride for at, stride in zip(inside, _strides(array), strict=True)))
    return tuple(ruled), tuple(indexed)


def _strides(array):
    """Returns the bytes from an element to the next one along each axis."""
    size = padded_bytes(array) // math.prod(array.dimensions)
    strides = [0] * len(array.dimensions)
    for axis in array.layout.minor_to_major:
        strides[axis] = size
        size *= array.dimensions[axis]
    return strides


def _trips(loop):
    return int(_config(loop).get("known_trip_count", {}).get("n", 1))


def _config(instruction):
    try:
        config = json.loads(instruction.backend_config or b"{}")
    except ValueError:  # that of a call of a library, which is not JSON
        return {}
    return config if isinstance(config, dict) else {}


@dataclass(frozen=True)
class _Values:
    """Integers of a module in one round of the loops around a slice.

    `path` leads to the slice: the computation at a `depth` is the one that `path[depth - 1]` calls.
    """

    module: object
    path: tuple[int, ...]
    rounds: dict

    def of(self, identity, depth, index=()):
        """Returns the value of an instruction, or of an element of the tuple that it is."""
        instruction = self.module.instructions[identity]
        opcode, operands = instruction.opcode, instruction.operand_ids
        if opcode == "constant":
            literal = instruction.literal
            (value,) = [*literal.s32s, *literal.s64s, *literal.u32s, *literal.u64s, *literal.preds]
            return value
        if opcode == "parameter":
            return self.argument(instruction.parameter_number, index, depth)
        if opcode == "get-tuple-element":
            return self.of(operands[0], depth, (instruction.tuple_index, *index))
        if opcode == "tuple":
            return self.of(operands[index[0]], depth, index[1:])
        if opcode in ("fusion", "call"):
            (called,) = instruction.called_computation_ids
            inside = _Values(self.module, (*self.path[:depth], identity), self.rounds)
            return inside.of(self.module.roots[called], depth + 1, index)
        if opcode in PASS_ON:
            return self.of(operands[0], depth)
        values = [self.of(operand, depth) for operand in operands]
        if opcode == "compare":
            return COMPARISONS[instruction.comparison_direction](*values)
        assert opcode in ARITHMETIC, f"an index that follows from {opcode} is not known here"
        return int(ARITHMETIC[opcode](*values))

    def argument(self, number, index, depth):
        """Returns what a computation is given by its caller."""
        caller = self.module.instructions[self.path[depth - 1]]
        if caller.opcode != "while":
            return self.of(caller.operand_ids[number], depth - 1, index)

        # A loop's counter.
        config = _config(caller)
        (element,) = index
        if element == int(config["known_induction_variable"].get("tuple_index", 0)):
            counter = config["known_init_step"]
            return int(counter.get("init", 0)) + self.rounds[caller.id] * int(counter["step"])

        # Any other element: the value from before the loop, if the body passes it on as it is.
        body, *_ = caller.called_computation_ids
        following = self.module.instructions[self.module.roots[body]].operand_ids[element]
        passed_on = self.module.instructions[following]
        is_constant = passed_on.opcode == "get-tuple-element" and passed_on.tuple_index == element
        assert is_constant, f"an index follows from element {element} of a loop, which changes and is not its counter"
        return self.of(caller.operand_ids[0], depth - 1, index)
