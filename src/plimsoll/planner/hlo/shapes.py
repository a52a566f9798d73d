"""Shapes of values in a compiled module: the arrays of a tuple, text like `float32[256,512]`, and padded bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

TUPLE, OPAQUE, TOKEN = 13, 14, 17
_TYPES = {
    1: ("bool", 8), 2: ("int8", 8), 3: ("int16", 16), 4: ("int32", 32), 5: ("int64", 64), 6: ("uint8", 8),
    7: ("uint16", 16), 8: ("uint32", 32), 9: ("uint64", 64), 10: ("float16", 16), 11: ("float32", 32),
    12: ("float64", 64), 15: ("complex64", 64), 16: ("bfloat16", 16), 18: ("complex128", 128),
    19: ("float8_e5m2", 8), 20: ("float8_e4m3fn", 8), 21: ("int4", 4), 22: ("uint4", 4),
}  # fmt: skip
"""Name and bits of an element, by `xla.PrimitiveType`. Further kinds of float8 have numbers from 23 on."""


def part_at(shape: Any, index: Sequence[int]) -> Any:
    """Returns the part of a tuple's shape at `index`; the whole shape for the index ()."""
    for at in index:
        shape = shape.tuple_shapes[at]
    return shape


def leaves(shape: Any, index: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yields the arrays in a shape, each with its index."""
    if shape.element_type == TUPLE:
        for at, part in enumerate(shape.tuple_shapes):
            yield from leaves(part, (*index, at))
    elif shape.element_type not in (TOKEN, OPAQUE):
        yield index, shape


def shape_words(shape: Any) -> str:
    """Returns a shape as text, like `float32[256,512]`; `tuple` for a tuple."""
    if shape.element_type == TUPLE:
        return "tuple"
    name, _ = _TYPES.get(shape.element_type, (f"dtype {shape.element_type}", 8))
    return f"{name}[{','.join(map(str, shape.dimensions))}]"


def padded_bytes(shape: Any) -> int:
    """Returns the bytes of an array in its layout. A TPU pads the last axes to whole tiles."""
    sizes, layout = list(shape.dimensions), shape.layout
    if layout.tiles:
        tile = list(layout.tiles[0].dimensions)[::-1]
        sizes = [sizes[axis] for axis in layout.minor_to_major]
        for at, (size, step) in enumerate(zip(sizes, tile, strict=False)):
            sizes[at] = -(-size // step) * step if 0 < step < 2**31 else size
    _, bits = _TYPES.get(shape.element_type, ("", 8))
    return -(-math.prod(sizes) * (layout.element_size_in_bits or bits) // 8)
