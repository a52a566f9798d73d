"""The kernels of a step that was compiled for a GPU: how often each runs, what it multiplies, what it moves.

A kernel is an instruction of the optimised module that the device carries out: a fusion, a library's call, a copy. What
only renames a value is none. The body of a loop counts as often as the compiler knows it to run; of a loop without a
known count, once. Of branches the one that moves most counts. What devices send one another, and copies from and to
the host, are left out: `planner.speed` prices them by their links.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.shapes import leaves, padded_bytes

HOST = 5
"""`memory_space` of the host (xla::Layout::kHostMemorySpace)."""
HIGHEST = 2
"""`xla.PrecisionConfig.HIGHEST`."""
_PRECISION = {16: "bfloat16", 10: "float16"}
"""`xla.PrimitiveType` of operands to the precision of their product; others are float32, or TF32 where it may be."""
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "optimization-barrier", "after-all",
    "add-dependency", "partition-id", "replica-id", "domain", "async-done", "async-update", "copy-done",
}  # fmt: skip
SENT = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective", "send", "recv", "infeed", "outfeed")
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = ("dynamic-update-slice", "scatter")
_NO_KERNEL = ("AllocateBuffer", "Sharding", "MoveToHost", "MoveToDevice", "SliceToDynamic", "PadToStatic")
"""Custom calls that only mark a value."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of matrices, or an attention, which is several of them in one kernel."""

    precision: str
    """Its units: `float32`, `tf32`, `bfloat16` or `float16`."""
    batch: int
    rows: int
    cols: int
    inner: int
    attention: bool = False
    """True of a flash attention: `rows` are queries, `cols` keys, `inner` the widths of all its products together."""

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.cols * self.inner


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel with what it does each time that it runs."""

    moved_bytes: int
    """Operands that it reads and results that it writes, each once."""
    product: Product | None = None


def kernels(module: Module) -> Counter[Kernel]:
    """Returns every kernel of a scheduled module, and how often it runs in one call."""
    counted: Counter[Kernel] = Counter()
    _count(Reader(module), module.entry, 1, counted)
    return counted


def products(module: Module) -> list[tuple[Product, bool]]:
    """Returns every dot of a scheduled module, and whether it is inside a fusion, as those given to a library are."""
    reader = Reader(module)
    return [
        (reader.product(module.instructions[identity]), computation not in module.schedule)
        for computation, body in module.bodies.items()
        for identity in body
        if module.instructions[identity].opcode == "dot"
    ]


def _count(reader: Reader, computation: int, times: int, counted: Counter[Kernel]) -> None:
    module = reader.module
    for identity in module.schedule[computation]:
        instruction = module.instructions[identity]
        opcode, calls = instruction.opcode, module.scheduled_calls(identity)
        if opcode == "while":
            body, *_ = calls
            _count(reader, body, times * trips(instruction), counted)
        elif opcode == "conditional":
            branches = [Counter[Kernel]() for _ in calls]
            for called, branch in zip(calls, branches, strict=True):
                _count(reader, called, times, branch)
            counted.update(max(branches, key=_moved))
        elif opcode in ("call", "async-start"):
            for called in calls:
                _count(reader, called, times, counted)
        elif opcode not in FREE and not opcode.startswith(SENT) and (kernel := reader.kernel(instruction)):
            counted[kernel] += times


def _moved(counted: Mapping[Kernel, int]) -> int:
    return sum(times * kernel.moved_bytes for kernel, times in counted.items())


def trips(loop: Any) -> int:
    """Returns how often a loop runs, as far as the compiler knows; else 1."""
    return int(_config(loop).get("known_trip_count", {}).get("n", 1))


def _config(instruction: Any) -> dict[str, Any]:
    try:
        config = json.loads(instruction.backend_config or b"{}")
    except ValueError:  # of a library's call, in a form of its own
        return {}
    return config if isinstance(config, dict) else {}


@dataclass(frozen=True)
class Reader:
    """Reader of a module's instructions as kernels."""

    module: Module

    def kernel(self, instruction: Any) -> Kernel | None:
        """Returns the kernel that an instruction is; None for one that is none, or that reaches the host's memory."""
        opcode, target = instruction.opcode, instruction.custom_call_target
        arrays = [*self._operands(instruction), *(shape for _, shape in leaves(instruction.shape))]
        if target in _NO_KERNEL or any(shape.layout.memory_space == HOST for shape in arrays):
            return None
        if opcode == "custom-call":
            return self._library_call(instruction, target)
        if opcode == "fusion":
            computation = instruction.called_computation_ids[0]
            return Kernel(moved_bytes=self._fusion_bytes(instruction, computation), product=self._dot(computation))
        if opcode in _SLICES:
            return Kernel(moved_bytes=2 * array_bytes(instruction.shape))
        if opcode in _UPDATES:
            return Kernel(moved_bytes=2 * self._update_bytes(instruction))
        product = self.product(instruction) if opcode == "dot" else None
        moved = sum(map(padded_bytes, arrays if opcode != "copy-start" else arrays[:1]))
        return Kernel(moved_bytes=2 * moved if opcode == "copy-start" else moved, product=product)

    def _operands(self, instruction: Any) -> list[Any]:
        """Returns the arrays in its operands' shapes."""
        operands = (self.module.instructions[operand].shape for operand in instruction.operand_ids)
        return [array for shape in operands for _, array in leaves(shape)]

    def _library_call(self, instruction: Any, target: str) -> Kernel:
        """Returns the kernel of cuBLAS, cuDNN or another library; its workspace, the last result, is not moved."""
        operands = self._operands(instruction)
        results = [shape for _, shape in leaves(instruction.shape)]
        library = target.startswith(("__cublas", "__cudnn"))
        moved = sum(map(padded_bytes, [*operands, *(results[:-1] if library and len(results) > 1 else results)]))
        config = _config(instruction)
        if "gemm_backend_config" in config and len(operands) > 1:
            gemm = config["gemm_backend_config"]
            numbers = gemm.get("dot_dimension_numbers", {})
            axes = [
                [int(axis) for axis in numbers.get(f"{name}_dimensions", ())]
                for name in ("lhs_contracting", "lhs_batch", "rhs_contracting", "rhs_batch")
            ]
            precisions = gemm.get("precision_config", {}).get("operand_precision", ())
            left, right = operands[:2]
            product = _shaped(left, right, *axes, highest="HIGHEST" in precisions)
            return Kernel(moved_bytes=moved, product=product)
        if "cudnn_fmha_backend_config" in config:
            settings = config["cudnn_fmha_backend_config"]
            product = _attention(settings, operands[0], backward="Backward" in target)
            if settings.get("force_deterministic"):  # half of the scores' gradients, written and read
                moved += padded_bytes(results[-1])
            return Kernel(moved_bytes=moved, product=product)
        return Kernel(moved_bytes=moved)

    def product(self, dot: Any) -> Product:
        """Returns the product that a dot is."""
        left, right = self._operands(dot)
        numbers = dot.dot_dimension_numbers
        axes = (
            numbers.lhs_contracting_dimensions,
            numbers.lhs_batch_dimensions,
            numbers.rhs_contracting_dimensions,
            numbers.rhs_batch_dimensions,
        )
        return _shaped(left, right, *axes, highest=HIGHEST in dot.precision_config.operand_precision)

    def _dot(self, computation: int) -> Product | None:
        """Returns the product inside a fusion, the largest, in the fusions within it too; None where there is none."""
        products = []
        for identity in self.module.bodies[computation]:
            instruction = self.module.instructions[identity]
            if instruction.opcode == "dot":
                products.append(self.product(instruction))
            elif instruction.opcode == "fusion":
                products.append(self._dot(instruction.called_computation_ids[0]))
        return max((each for each in products if each), key=lambda product: product.flops, default=None)

    def _fusion_bytes(self, fusion: Any, computation: int) -> int:
        """Returns what a fusion reads and writes: of an operand that is only sliced the slices, of an update a part."""
        instructions, body = self.module.instructions, self.module.bodies[computation]
        users: dict[int, list[Any]] = {identity: [] for identity in body}
        for identity in body:
            for operand in instructions[identity].operand_ids:
                users[operand].append(instructions[identity])
        root = instructions[self.module.roots[computation]]
        results = [instructions[each] for each in root.operand_ids] if root.opcode == "tuple" else [root]
        moved = sum(self._written(result) for result in results)
        for identity in body:
            instruction = instructions[identity]
            if instruction.opcode == "parameter":
                whole = array_bytes(instruction.shape)
                moved += min(whole, sum(_read(instruction, user, users) for user in users[identity]))
        return moved

    def _written(self, result: Any) -> int:
        while result.opcode == "bitcast":
            result = self.module.instructions[result.operand_ids[0]]
        return self._update_bytes(result) if result.opcode in _UPDATES else array_bytes(result.shape)

    def _update_bytes(self, update: Any) -> int:
        """Returns the bytes of what is written into a larger array, which stays where it is."""
        return array_bytes(self.module.instructions[update.operand_ids[-1 if update.opcode == "scatter" else 1]].shape)


def _read(value: Any, user: Any, users: Mapping[int, Sequence[Any]]) -> int:
    """Returns the bytes that one user inside a fusion reads of a value."""
    if user.opcode == "bitcast":
        return sum(_read(user, further, users) for further in users[user.id])
    if user.opcode in (*_SLICES, *_UPDATES) and user.operand_ids[0] == value.id:
        return array_bytes(user.shape) if user.opcode in _SLICES else 0
    return array_bytes(value.shape)


def array_bytes(shape: Any) -> int:
    """Returns the bytes of all arrays in a shape, in their layouts."""
    return sum(padded_bytes(array) for _, array in leaves(shape))


def _shaped(
    left: Any,
    right: Any,
    contracted: Iterable[int],
    batch: Iterable[int],
    right_contracted: Iterable[int],
    right_batch: Iterable[int],
    *,
    highest: bool,
) -> Product:
    contracted, batch = list(contracted), list(batch)
    outer = {*right_contracted, *right_batch}
    return Product(
        precision=_PRECISION.get(left.element_type, "float32" if highest else "tf32"),
        batch=math.prod(left.dimensions[axis] for axis in batch),
        rows=math.prod(size for axis, size in enumerate(left.dimensions) if axis not in {*contracted, *batch}),
        cols=math.prod(size for axis, size in enumerate(right.dimensions) if axis not in outer),
        inner=math.prod(left.dimensions[axis] for axis in contracted),
    )


def _attention(config: Mapping[str, Any], query: Any, *, backward: bool) -> Product:
    """Returns a flash attention's products: two forward, five backward, half of each where it is causal."""
    *batch, rows, cols = (int(size) for size in config["intermediate_tensor_shape"]["dimensions"])
    heads = math.prod(batch)
    width = math.prod(query.dimensions) // (heads * rows)
    products = 5 if backward else 2
    return Product(
        precision=_PRECISION.get(query.element_type, "float32"),
        batch=heads,
        rows=rows,
        cols=cols // 2 if "CAUSAL" in config.get("mask_type", "") else cols,
        inner=products * width,
        attention=True,
    )
