"""Bytes that CPU libraries allocate for a matmul or a convolution, which the compiler's count leaves out.

YNNPACK computes a few columns of a matmul at a time. Each core first packs these columns of the second factor into a
panel, whose length is the number of summed terms. The gradient of a weight sums over all tokens of a micro-batch: with
32,768 tokens each core's panel was 8 MiB. Matmuls that XLA does not give to YNNPACK go to Eigen, which packs blocks of
both factors. Measured by counting allocations (notes, "What the compiler does not count: packed factors"; jax 0.10.2).
"""

from __future__ import annotations

from plimsoll.planner.hlo.convolutions import convolutions
from plimsoll.planner.hlo.kernels import Product, products
from plimsoll.planner.hlo.module import Module

PANEL_COLUMNS = 64
"""Largest number of columns in a core's panel. In bfloat16 panels mostly have half as many."""
EIGEN_DEPTH = 1024
"""Upper bound on the length of the contracted dimension that Eigen packs at a time; 970 was measured."""
ITEM_BYTES = {"bfloat16": 2, "float16": 2}
"""Bytes of an element, by precision; 4 for other precisions."""


def packed_bytes(module: Module, *, cores: int) -> int:
    """Returns the largest number of bytes that a matmul or convolution of a compiled step packs.

    Matmuls that run in parallel share the cores, so together they pack no more than the largest one.
    """
    dots = [_packed(product, fused=fused, cores=cores) for product, fused in products(module)]
    convolved = [convolution.beside(cores=cores) for convolution in convolutions(module)]
    return max(dots + convolved, default=0)


def _packed(product: Product, *, fused: bool, cores: int) -> int:
    size = ITEM_BYTES.get(product.precision, 4)
    if fused:
        return product.batch * product.inner * min(product.cols, PANEL_COLUMNS * cores) * size
    return min(product.inner, EIGEN_DEPTH) * (product.rows + product.cols) * size
