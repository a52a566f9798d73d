"""Bytes and words of shapes: every element type beside XLA's own enumeration, and layouts by hand."""

import numpy as np
import pytest
from jaxlib import xla_client
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from plimsoll.planner.hlo.messages import ShapeProto
from plimsoll.planner.hlo.shapes import leaves, padded_bytes, part_at, shape_words

XLA = {
    "PRED": "bool", "S8": "int8", "S16": "int16", "S32": "int32", "S64": "int64", "U8": "uint8", "U16": "uint16",
    "U32": "uint32", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "C64": "complex64", "C128": "complex128", "F8E5M2": "float8_e5m2", "F8E4M3FN": "float8_e4m3fn", "S4": "int4",
    "U4": "uint4",
}  # fmt: skip
OURS = {"bfloat16": bfloat16, "float8_e5m2": float8_e5m2, "float8_e4m3fn": float8_e4m3fn}
NUMBERS = {kind.name: kind.value for kind in xla_client.PrimitiveType}


def array(number, *sizes, **layout):
    return ShapeProto(element_type=number, dimensions=sizes, layout=layout)


@pytest.mark.parametrize(("kind", "name"), XLA.items())
def test_a_type_has_xlas_number_and_numpys_bytes(kind, name):
    shape = array(NUMBERS[kind], 3, 5)
    assert shape_words(shape) == f"{name}[3,5]"
    in_half_bytes = 15 if name.endswith("int4") else 2 * 15 * np.dtype(OURS.get(name, name)).itemsize
    assert padded_bytes(shape) == -(-in_half_bytes // 2)


def test_a_type_without_a_name_has_a_number_and_a_byte():
    assert shape_words(array(NUMBERS["F8E4M3FNUZ"], 7)) == "dtype 25[7]"
    assert padded_bytes(array(NUMBERS["F8E4M3FNUZ"], 7)) == 7


F32, TUPLE = NUMBERS["F32"], NUMBERS["TUPLE"]


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ({}, 4 * 3 * 130),
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [8, 128]}]}, 4 * 8 * 256),
        ({"minor_to_major": [0, 1], "tiles": [{"dimensions": [8, 128]}]}, 4 * 128 * 136),
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [1, 1]}]}, 4 * 3 * 130),
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [3, 130]}]}, 4 * 3 * 130),
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [2**31 - 2, 130]}]}, 4 * (2**31 - 2) * 130),
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [2**31, 0]}]}, 4 * 3 * 130),  # not tiled
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [8, 128]}, {"dimensions": [999]}]}, 4 * 8 * 256),
        ({"minor_to_major": [1, 0], "tiles": [{"dimensions": [128]}], "element_size_in_bits": 4}, 3 * 256 // 2),
        ({"element_size_in_bits": 1}, -(-3 * 130 // 8)),
    ],
)
def test_the_first_tile_fills_up_the_minor_axes(layout, size):
    assert padded_bytes(array(F32, 3, 130, **layout)) == size


def test_the_arrays_of_a_tuple_have_their_places_and_tokens_have_none():
    inner = {"element_type": TUPLE, "tuple_shapes": [array(F32, 2), {"element_type": NUMBERS["TOKEN"]}, array(F32, 4)]}
    shape = ShapeProto(
        element_type=TUPLE, tuple_shapes=[array(F32, 1), {"element_type": NUMBERS["OPAQUE_TYPE"]}, inner]
    )
    assert [(index, list(part.dimensions)) for index, part in leaves(shape)] == [
        ((0,), [1]),
        ((2, 0), [2]),
        ((2, 2), [4]),
    ]
    assert part_at(shape, (2, 2)).dimensions == [4]
    assert part_at(shape, ()) is shape
    assert shape_words(shape) == "tuple"
