"""Bytes that Eigen allocates for a convolution on a CPU, which the compiler's count leaves out.

XLA gives convolutions with one to three spatial axes to Eigen, in float32 or float16. Eigen computes them as matmuls,
with a row of the kernel's size for each position of the result. It packs blocks of the rows and of the kernel. Besides,
it allocates

* for a dilated operand: the whole product, before it is summed into the result. It has a row for each position of the
  *operand*. Operands are dilated in transposed convolutions, and in the operand's gradient of strided convolutions;
* for a result with three axes: a copy of the result;
* for a grouped convolution: all of this for many groups at once. Their number varies (2 to 37 % of 128 groups were
  measured), so all groups are counted.

Derived from `convolution_thunk_internal.h` of XLA and `TensorContractionThreadPool.h` of Eigen, and compared with the
resident set (notes, "What the compiler does not count: convolutions"; jax 0.10.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planner.hlo.module import Module
from plimsoll.units import GIB

LARGEST_PRODUCT = 8 * GIB
"""Largest product of a dilated operand, in bytes, that XLA keeps whole (`kMaxConvMatrixSize`)."""
DEPTH = 320
"""Largest number of elements of a row in one packed block, on several cores. Longer rows need two blocks: one in use,
and the next one, which is being packed."""
LEAST_ROWS, ROWS_A_CORE, MOST_CORES = 4096, 1024, 16
"""Rows in a packed block: ROWS_A_CORE for each of at most MOST_CORES cores, but at least LEAST_ROWS."""
MANY, OWN_ROWS = 8, 512
"""If a matmul has more than MANY times the rows of such a block, each core packs its own block of OWN_ROWS rows."""
FLOAT16 = 10
"""Number of float16 in `xla.PrimitiveType`. XLA converts bfloat16 operands before a convolution, and the compiler's own
bytes include the converted copies."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """Sizes of a compiled convolution. Spatial axes are in XLA's order for operand, kernel and window."""

    batch: int
    operand: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    filters: int
    result: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    """Dilation of the operand's spatial axes."""
    kernel_dilation: tuple[int, ...]
    groups: int
    itemsize: int

    @property
    def result_bytes(self) -> int:
        return self.batch * math.prod(self.result) * self.filters * self.itemsize

    @property
    def adds_up(self) -> bool:
        """True if XLA keeps the whole product of a dilated operand, and then sums it into the result."""
        plain = max(self.strides) == max(self.kernel_dilation) == self.groups == 1
        dilated = max(self.dilation) > 1 and len(self.operand) < 3
        return plain and dilated and self.product_bytes <= LARGEST_PRODUCT

    @property
    def product_bytes(self) -> int:
        rows = self.batch * math.prod(self.operand)
        return rows * math.prod(self.kernel) * self.filters * self.itemsize

    def beside(self, *, cores: int) -> int:
        """Returns the bytes that the convolution needs besides its arrays; for several groups, an upper bound."""
        kernel = math.prod(self.kernel)
        places = self.batch * math.prod(self.result)
        if self.groups > 1:
            depth = kernel * self.channels // self.groups
            return self.result_bytes + self.packed_bytes(places * self.groups + self.filters, depth)

        # The matmul: (rows x depth) times (depth x columns). Its factors are packed, one block of rows at a time.
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
        """Returns the bytes of a packed block of `vectors` rows of `depth` elements, or of two for `depth` > DEPTH."""
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
