"""What Eigen allocates for a convolution on a CPU, beside what the compiler counts.

XLA gives convolutions of one to three axes to Eigen, as float32 or float16. Eigen multiplies matrices: a row for each
place of the result, as long as the kernel. It packs rows and kernel in blocks. Beside them it allocates

* the whole product, before it is added up into the result, where the operand is dilated: the gradient of the operand
  of a convolution with a stride, and a transposed convolution. It has a row for each place of the *operand*;
* the result again, where that has three axes;
* all of it for each group of features, many of them at once. How many is chance (of 128 groups 2 to 37 % were seen):
  all of them are charged.

From `convolution_thunk_internal.h` of XLA and `TensorContractionThreadPool.h` of Eigen, and held against the resident
set (notes, "What the compiler does not count: convolutions"; jax 0.10.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planner.hlo.module import Module
from plimsoll.units import GIB

LARGEST_PRODUCT = 8 * GIB
"""Bytes beyond which XLA does not keep the whole product of a dilated operand (`kMaxConvMatrixSize`)."""
DEPTH = 320
"""Most elements of a row that are packed at a time, where more than one core works; then the next are packed, too."""
LEAST_ROWS, ROWS_A_CORE, MOST_CORES = 4096, 1024, 16
"""Rows that are packed at a time."""
MANY, OWN_ROWS = 8, 512
"""Times as many rows from which on each core packs so many of its own at a time."""
FLOAT16 = 10
"""`xla.PrimitiveType` of float16. Operands of bfloat16 are converted first, and the copies are counted."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution as it was compiled. Axes are in XLA's order, of the operand, of the kernel and of the window."""

    batch: int
    operand: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    filters: int
    result: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    """Of the operand."""
    kernel_dilation: tuple[int, ...]
    groups: int
    itemsize: int

    @property
    def result_bytes(self) -> int:
        return self.batch * math.prod(self.result) * self.filters * self.itemsize

    @property
    def adds_up(self) -> bool:
        """True where XLA keeps the whole product and adds it up."""
        plain = max(self.strides) == max(self.kernel_dilation) == self.groups == 1
        dilated = max(self.dilation) > 1 and len(self.operand) < 3
        return plain and dilated and self.product_bytes <= LARGEST_PRODUCT

    @property
    def product_bytes(self) -> int:
        rows = self.batch * math.prod(self.operand)
        return rows * math.prod(self.kernel) * self.filters * self.itemsize

    def beside(self, *, cores: int) -> int:
        """Returns the bytes that it takes beside its arrays; of several groups, the most that they may be."""
        kernel = math.prod(self.kernel)
        places = self.batch * math.prod(self.result)
        if self.groups > 1:
            depth = kernel * self.channels // self.groups
            return self.result_bytes + self.packed_bytes(places * self.groups + self.filters, depth)

        # The product: rows x depth times depth x columns. Its factors are packed, a block of rows at a time.
        whole = self.result_bytes if len(self.operand) == 3 else 0
        rows, depth, columns = places, kernel * self.channels, self.filters
        if self.adds_up:
            whole = self.product_bytes
            rows, depth, columns = self.batch * math.prod(self.operand), self.channels, kernel * self.filters
        together = max(LEAST_ROWS, ROWS_A_CORE * min(cores, MOST_CORES))
        if rows > MANY * together:
            together = OWN_ROWS * cores
        return whole + self.packed_bytes(min(rows, together) + columns, depth)

    def packed_bytes(self, vectors: int, depth: int) -> int:
        """Returns the bytes of packed rows and columns of so many elements: the next block beside this one."""
        blocks = 2 if depth > DEPTH else 1
        return blocks * vectors * min(depth, DEPTH) * self.itemsize


def convolutions(module: Module) -> list[Convolution]:
    """Returns every convolution of a compiled module."""
    instructions = module.instructions.values()
    compiled = [instruction for instruction in instructions if instruction.opcode == "convolution"]
    return [_convolution(module, instruction) for instruction in compiled]


def _convolution(module: Module, instruction: Any) -> Convolution:
    operand, kernel = (module.instructions[identity].shape for identity in instruction.operand_ids[:2])
    numbers, window = instruction.convolution_dimension_numbers, instruction.window.dimensions
    return Convolution(
        batch=operand.dimensions[numbers.input_batch_dimension],
        operand=_sizes(operand, numbers.input_spatial_dimensions),
        channels=operand.dimensions[numbers.input_feature_dimension],
        kernel=_sizes(kernel, numbers.kernel_spatial_dimensions),
        filters=kernel.dimensions[numbers.kernel_output_feature_dimension],
        result=_sizes(instruction.shape, numbers.output_spatial_dimensions),
        strides=tuple(axis.stride for axis in window),
        dilation=tuple(axis.base_dilation for axis in window),
        kernel_dilation=tuple(axis.window_dilation for axis in window),
        groups=max(1, instruction.feature_group_count),
        itemsize=2 if operand.element_type == FLOAT16 else 4,
    )


def _sizes(shape: Any, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape.dimensions[axis] for axis in axes)
