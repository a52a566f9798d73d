"""What the libraries of a CPU allocate for a dot or a convolution, beside what the compiler counts.

YNNPACK multiplies a few columns at a time, and packs those of the second factor first: every core has such a panel, as
long as the dot is deep. The gradient of a weight sums over all tokens of a micro-batch: with 32,768 of them each core's
panel was 8 MiB. A dot that XLA does not give to YNNPACK is Eigen's, which packs blocks of both factors whole. Measured
by counting allocations (notes, "What the compiler does not count: packed factors"; jax 0.10.2).
"""

from __future__ import annotations

from plimsoll.planner.hlo.convolutions import convolutions
from plimsoll.planner.hlo.kernels import Product, products
from plimsoll.planner.hlo.module import Module

PANEL_COLUMNS = 64
"""Columns in a core's panel; in bfloat16 mostly half of them."""
EIGEN_DEPTH = 1024
"""Most rows of a factor that Eigen holds packed at a time: 970 were measured."""
ITEM_BYTES = {"bfloat16": 2, "float16": 2}
"""Bytes of an element by precision; of others 4."""


def packed_bytes(module: Module, *, cores: int) -> int:
    """Returns the most that one dot or convolution of a compiled step takes, in bytes.

    Dots that run side by side share the cores.
    """
    dots = [_packed(product, fused=fused, cores=cores) for product, fused in products(module)]
    convolved = [convolution.beside(cores=cores) for convolution in convolutions(module)]
    return max(dots + convolved, default=0)


def _packed(product: Product, *, fused: bool, cores: int) -> int:
    size = ITEM_BYTES.get(product.precision, 4)
    if fused:
        return product.batch * product.inner * min(product.cols, PANEL_COLUMNS * cores) * size
    return min(product.inner, EIGEN_DEPTH) * (product.rows + product.cols) * size
