"""Seconds of the kernels of a step on a GPU: the time of a kernel's matmul or of its memory traffic, if that is longer.

A matmul is computed in tiles, one tile per multiprocessor at a time. So a matmul with few rows leaves most of a card
idle, and the last wave of tiles is seldom full. `chips.toml` has the shares of the data sheet's rates that kernels
reach, measured on one H100 or fitted to its steps. Other cards are assumed to reach the same shares.
"""

from __future__ import annotations

import math

from plimsoll.planner.chip_file import Chip
from plimsoll.planner.hlo.kernels import Kernel, Product

TILE = 128
"""Rows and columns that a multiprocessor computes at a time: cuBLAS' usual tile of 128 x 128 (NVIDIA, Matrix
Multiplication Background User's Guide, "Tile Quantization")."""
SHARE_OF_INNER = 512
"""Fewest summed terms for one multiprocessor, if a matmul's sum is split over otherwise idle multiprocessors."""


def seconds_of(kernel: Kernel, chip: Chip) -> float:
    """Returns the seconds of a kernel, without its launch."""
    bytes_per_second = chip.memory_bandwidth * chip.kernels["memory_share"]
    return max(product_seconds(kernel.product, chip), kernel.moved_bytes / bytes_per_second)


def product_seconds(product: Product | None, chip: Chip) -> float:
    """Returns the seconds of a product's arithmetic, without its memory traffic; 0 for None.

    A card without TF32 multiplies in float32.
    """
    if product is None:
        return 0.0
    peak = chip.flops.get(product.precision, chip.flops["float32"])
    if product.attention:
        return product.flops / (peak * chip.kernels["attention_share"])
    cores = chip.compiler["core_count"]
    tiles = product.batch * math.ceil(product.rows / TILE) * math.ceil(product.cols / TILE)
    split = max(1, min(cores // tiles, product.inner // SHARE_OF_INNER)) if tiles else 1
    waves = math.ceil(tiles * split / cores)
    of_a_wave = 2.0 * TILE * TILE * product.inner / split * cores
    return waves * of_a_wave / (peak * chip.kernels["product_share"])
