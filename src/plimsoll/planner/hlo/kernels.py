"""Kernels among the instructions of a compiled module, each with its matmul and the bytes that it reads and writes.

A kernel is an instruction that the device executes: a fusion, a call of a library, a copy. Instructions that only
rename a value are no kernels. Transfers between devices, and copies from and to the host, are left out:
`planner.speed` estimates their time from the rates of links.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import ParseDict

from plimsoll.planner.hlo.messages import DotDimensionNumbers
from plimsoll.planner.hlo.module import Module
from plimsoll.planner.hlo.shapes import leaves, padded_bytes

HOST = 5
"""Value of a layout's `memory_space` in the host's memory (xla::Layout::kHostMemorySpace)."""
HIGHEST = 2
"""`xla.PrecisionConfig.HIGHEST`."""
_PRECISION = {16: "bfloat16", 10: "float16"}
"""Precision of a matmul, by the `xla.PrimitiveType` of its operands. Other types mean float32 or TF32."""
_RENAMED = """
    parameter constant tuple get-tuple-element bitcast optimization-barrier after-all add-dependency partition-id
    replica-id domain async-done async-update copy-done
"""
FREE = frozenset(_RENAMED.split())
"""Opcodes of instructions that only rename a value."""
_SENT = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective", "send", "recv", "infeed", "outfeed")
_SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = ("dynamic-update-slice", "scatter")
"""Opcodes that write a part of an array in place."""
_NO_KERNEL = ("AllocateBuffer", "Sharding", "MoveToHost", "MoveToDevice", "SliceToDynamic", "PadToStatic")
"""Targets of custom calls that only mark a value, and run no kernel."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matmul, or all matmuls of one attention kernel."""

    precision: str
    """Arithmetic of the matmul: `float32`, `tf32`, `bfloat16` or `float16`."""
    batch: int
    rows: int
    cols: int
    inner: int
    attention: bool = False
    """True for flash attention: `rows` are queries, `cols` keys, and `inner` is the sum over its matmuls' widths."""

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.cols * self.inner


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Work of a kernel in one execution."""

    moved_bytes: int
    """Bytes of the operands that the kernel reads and of the results that it writes, each counted once."""
    product: Product | None = None


def products(module: Module) -> list[tuple[Product, bool]]:
    """Returns every matmul of a scheduled module, each with True if it is in a fusion, like YNNPACK's on a CPU."""
    reader = Reader(module)
    return [
        (reader.product(module.instructions[identity]), computation not in module.schedule)
        for computation, body in module.bodies.items()
        for identity in body
        if module.instructions[identity].opcode == "dot"
    ]


def configuration(instruction: Any) -> dict[str, Any]:
    """Returns the backend configuration that the compiler attached to an instruction; empty if it is not JSON."""
    try:
        noted = json.loads(instruction.backend_config or b"{}")
    except ValueError:  # calls of some libraries have another format
        return {}
    return noted if isinstance(noted, dict) else {}


@dataclass(frozen=True)
class Reader:
    """Reader of the kernels in a compiled module."""

    module: Module

    def kernel(self, instruction: Any) -> Kernel | None:
        """Returns the kernel of an instruction; None if it runs no kernel or accesses the host's memory."""
        opcode = instruction.opcode
        if opcode in FREE or opcode.startswith(_SENT) or instruction.custom_call_target in _NO_KERNEL:
            return None
        operands = self._operands(instruction)
        results = [shape for _, shape in leaves(instruction.shape)]
        if any(shape.layout.memory_space == HOST for shape in [*operands, *results]):
            return None

        if opcode == "custom-call":
            return self._library_call(instruction, operands, results)
        if opcode == "fusion":
            computation = instruction.called_computation_ids[0]
            return Kernel(moved_bytes=self._fusion_bytes(computation), product=self._largest_product(computation))
        product = self.product(instruction) if opcode == "dot" else None
        return Kernel(moved_bytes=self._moved_bytes(instruction), product=product)

    def _moved_bytes(self, instruction: Any) -> int:
        """Returns the bytes that an unfused operation reads and writes. Of sliced or updated arrays a part counts."""
        if instruction.opcode in _SLICES:
            return 2 * array_bytes(instruction.shape)
        if instruction.opcode in UPDATES:
            return 2 * self._update_bytes(instruction)
        read = sum(map(padded_bytes, self._operands(instruction)))
        return 2 * read if instruction.opcode == "copy-start" else read + array_bytes(instruction.shape)

    def _operands(self, instruction: Any) -> list[Any]:
        """Returns the shapes of all arrays in an instruction's operands."""
        operands = [self.module.instructions[operand].shape for operand in instruction.operand_ids]
        return [array for shape in operands for _, array in leaves(shape)]

    def _library_call(self, instruction: Any, operands: list[Any], results: list[Any]) -> Kernel:
        """Returns the kernel of a call of cuBLAS, cuDNN or another library.

        The final result of cuBLAS and cuDNN is a workspace. Its bytes count only for deterministic attention.
        """
        target = instruction.custom_call_target
        has_workspace = target.startswith(("__cublas", "__cudnn")) and len(results) > 1
        written = results[:-1] if has_workspace else results
        moved = sum(map(padded_bytes, [*operands, *written]))
        config = configuration(instruction)

        product = None
        gemm = config.get("gemm_backend_config")
        attention = config.get("cudnn_fmha_backend_config")
        if gemm is not None:
            numbers = ParseDict(gemm["dot_dimension_numbers"], DotDimensionNumbers(), ignore_unknown_fields=True)
            precisions = gemm.get("precision_config", {}).get("operand_precision", ())
            product = _product(operands[0], operands[1], numbers, is_highest="HIGHEST" in precisions)
        if attention is not None:
            product = _attention(attention, operands[0], products=5 if "Backward" in target else 2)
            if attention.get("force_deterministic"):  # half of the workspace, gradients of scores, is written and read
                moved += padded_bytes(results[-1])
        return Kernel(moved_bytes=moved, product=product)

    def product(self, dot: Any) -> Product:
        """Returns the product of a `dot` instruction."""
        left, right = self._operands(dot)
        is_highest = HIGHEST in dot.precision_config.operand_precision
        return _product(left, right, dot.dot_dimension_numbers, is_highest=is_highest)

    def _largest_product(self, computation: int) -> Product | None:
        """Returns the largest product inside a fusion, including nested fusions; None if there is none."""
        products = []
        for identity in self.module.bodies[computation]:
            instruction = self.module.instructions[identity]
            if instruction.opcode == "dot":
                products.append(self.product(instruction))
            elif instruction.opcode == "fusion":
                products.append(self._largest_product(instruction.called_computation_ids[0]))
        return max(filter(None, products), key=lambda product: product.flops, default=None)

    def _fusion_bytes(self, computation: int) -> int:
        """Returns the bytes that a fusion reads and writes.

        For an operand that is only sliced, the slices count. For an update in place, the updated part counts.
        """
        instructions = self.module.instructions
        body = [instructions[identity] for identity in self.module.bodies[computation]]
        root = instructions[self.module.roots[computation]]
        results = root.operand_ids if root.opcode == "tuple" else [root.id]
        moved = sum(self._written_bytes(self.module.behind_bitcasts(result)) for result in results)
        for instruction in body:
            if instruction.opcode == "parameter":
                moved += min(array_bytes(instruction.shape), _read_bytes(instruction, body))
        return moved

    def _written_bytes(self, result: Any) -> int:
        """Returns the bytes that a fusion writes for one of its results."""
        return self._update_bytes(result) if result.opcode in UPDATES else array_bytes(result.shape)

    def _update_bytes(self, update: Any) -> int:
        """Returns the bytes of the part that an update writes."""
        place = -1 if update.opcode == "scatter" else 1
        return array_bytes(self.module.instructions[update.operand_ids[place]].shape)


def _read_bytes(value: Any, body: list[Any]) -> int:
    """Returns the bytes of a value that the instructions of a fusion read."""
    read = 0
    for user in body:
        if value.id not in user.operand_ids:
            continue
        is_whole = value.id == user.operand_ids[0]
        if user.opcode == "bitcast":
            read += _read_bytes(user, body)
        elif is_whole and user.opcode in _SLICES:
            read += array_bytes(user.shape)
        elif not (is_whole and user.opcode in UPDATES):
            read += array_bytes(value.shape)
    return read


def array_bytes(shape: Any) -> int:
    """Returns the bytes of all arrays in a shape, with the padding of their layouts."""
    return sum(padded_bytes(array) for _, array in leaves(shape))


def _product(left: Any, right: Any, numbers: Any, *, is_highest: bool) -> Product:
    """Returns the product of two arrays. `numbers` has their contracting and batch axes. `is_highest` excludes TF32."""
    summed, batch = numbers.lhs_contracting_dimensions, numbers.lhs_batch_dimensions
    used = {*numbers.rhs_contracting_dimensions, *numbers.rhs_batch_dimensions}
    return Product(
        precision=_PRECISION.get(left.element_type, "float32" if is_highest else "tf32"),
        batch=math.prod(left.dimensions[axis] for axis in batch),
        rows=math.prod(size for axis, size in enumerate(left.dimensions) if axis not in {*summed, *batch}),
        cols=math.prod(size for axis, size in enumerate(right.dimensions) if axis not in used),
        inner=math.prod(left.dimensions[axis] for axis in summed),
    )


def _attention(config: Mapping[str, Any], query: Any, *, products: int) -> Product:
    """Returns the `products` matmuls of flash attention as one product. With a causal mask, half of the keys count."""
    *batch, rows, cols = (int(size) for size in config["intermediate_tensor_shape"]["dimensions"])
    heads = math.prod(batch)
    width = math.prod(query.dimensions) // (heads * rows)
    return Product(
        precision=_PRECISION.get(query.element_type, "float32"),
        batch=heads,
        rows=rows,
        cols=cols // 2 if "CAUSAL" in config.get("mask_type", "") else cols,
        inner=products * width,
        attention=True,
    )
