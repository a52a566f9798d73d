"""Bytes of a convolution beside its arrays: by formula, beside what a process of its own took (notes, jax 0.10.2)."""

from dataclasses import replace

import pytest

from plimsoll.planner.hlo.convolutions import LARGEST_PRODUCT, Convolution, convolutions
from plimsoll.planner.hlo.packed import packed_bytes
from written_modules import written

MIB = 2**20


def module(operand, kernel, result, window, dtype="f32", more=""):
    """A step of one convolution."""
    spatial = "".join(str(axis) for axis in range(operand.count(",") - 1))
    labels = f"b{spatial}f_{spatial}io->b{spatial}f"
    return written(f"""
ENTRY main {{
  x = {dtype}[{operand}] parameter(0)
  k = {dtype}[{kernel}] parameter(1)
  ROOT y = {dtype}[{result}] convolution(x, k), window={{{window}}}, dim_labels={labels}{more}
}}""")


OPERAND_GRADIENT = ("256,8,8,96", "5,5,96,96", "256,16,16,96", "size=5x5 pad=3_2x3_2 lhs_dilate=2x2")
"""Of 5 x 5 with stride 2 over 256 examples of 16 x 16 and 96 features."""
MEASURED = {
    "gradient of the operand, stride 2": (*OPERAND_GRADIENT, 151.7),
    "the same, stride 2 without padding": (
        "16,14,14,96", "5,5,96,256", "16,32,32,256", "size=5x5 pad=4_5x4_5 lhs_dilate=2x2", 82.4,
    ),
    "the same, stride 3": ("128,6,6,32", "4,4,32,96", "128,16,16,96", "size=4x4 pad=2_1x2_1 lhs_dilate=3x3", 28.9),
    "the same, one axis": ("64,1366,96", "3,96,32", "64,4096,32", "size=3 pad=1_1 lhs_dilate=3", 32.0),
    "the same, three axes": (
        "16,8,8,8,8", "1,1,1,8,96", "16,16,16,16,96", "size=1x1x1 pad=0_1x0_1x0_1 lhs_dilate=2x2x2", 24.0,
    ),
    "three axes": ("32,16,16,16,64", "3,3,3,64,64", "32,14,14,14,64", "size=3x3x3", 21.8),
    "stride 1": ("256,14,14,256", "4,4,256,64", "256,14,14,64", "size=4x4 pad=1_2x1_2", 3.1),
    "stride 2": ("16,16,16,256", "7,7,256,128", "16,8,8,128", "size=7x7 stride=2x2 pad=2_3x2_3", 2.8),
    "gradient of the kernel": ("256,14,14,256", "14,14,256,64", "256,4,4,64", "size=14x14 pad=1_2x1_2", 8.4),
}  # fmt: skip


@pytest.mark.parametrize("case", MEASURED)
def test_a_convolution_takes_what_was_measured_on_two_cores(case):
    *words, measured = MEASURED[case]
    predicted = packed_bytes(module(*words), cores=2) / MIB
    assert measured - max(1.5, 0.03 * measured) < predicted < measured + max(2.5, 0.03 * measured)


def test_the_whole_product_of_a_dilated_operand_is_counted_to_the_byte():
    (gradient,) = convolutions(module(*OPERAND_GRADIENT))
    assert gradient.adds_up
    assert gradient.product_bytes == 256 * 8 * 8 * 5 * 5 * 96 * 4 == 157_286_400
    assert not replace(gradient, kernel_dilation=(2, 2)).adds_up
    assert not replace(gradient, strides=(2, 2)).adds_up
    assert not replace(gradient, groups=96).adds_up
    (half,) = convolutions(module(*OPERAND_GRADIENT, dtype="f16"))
    assert half.product_bytes == gradient.product_bytes // 2


def test_a_product_beyond_xlas_limit_is_not_kept():
    (gradient,) = convolutions(module(*OPERAND_GRADIENT))
    most = LARGEST_PRODUCT // (gradient.product_bytes // gradient.batch)
    assert replace(gradient, batch=most).beside(cores=2) > LARGEST_PRODUCT - gradient.product_bytes
    assert replace(gradient, batch=most + 1).beside(cores=2) < 16 * MIB


def test_a_convolution_is_read_as_it_was_compiled():
    window = "size=3x2 stride=2x1 pad=1_0x-1_2 lhs_dilate=1x2 rhs_dilate=3x1"
    (each,) = convolutions(module("8,20,10,6", "3,2,3,4", "8,8,19,4", window, more=", feature_group_count=2"))
    assert each == Convolution(
        batch=8, operand=(20, 10), channels=6, kernel=(3, 2), filters=4, result=(8, 19), strides=(2, 1),
        dilation=(1, 2), kernel_dilation=(3, 1), groups=2, itemsize=4,
    )  # fmt: skip


def test_all_groups_of_a_convolution_are_charged_at_once():
    words = "256,16,16,96", "5,5,1,96", "256,16,16,96", "size=5x5 pad=2_2x2_2"
    step = module(*words, more=", feature_group_count=96")
    assert packed_bytes(step, cores=2) == (256 * 16 * 16 * 96 * (1 + 25) + 25 * 96) * 4  # took 597 MiB and the result
