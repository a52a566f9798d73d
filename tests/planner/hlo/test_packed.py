"""Bytes that libraries pack for a dot, in modules that are written by hand, as XLA leaves them on a CPU."""

import pytest

from plimsoll.planner.hlo.packed import packed_bytes
from written_modules import written

MIB = 2**20


def packed(text, *, cores):
    return packed_bytes(written(text), cores=cores)


def dot(rows, inner, cols, dtype="f32"):
    axes = "lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}"
    return f"""  x = {dtype}[{rows},{inner}] parameter(0)
  w = {dtype}[{inner},{cols}] parameter(1)
  ROOT y = f32[{rows},{cols}] dot(x, w), {axes}
}}"""


def given_to_a_library(rows, inner, cols, dtype="f32"):
    return f"""
product {{
{dot(rows, inner, cols, dtype)}

ENTRY main {{
  x = {dtype}[{rows},{inner}] parameter(0)
  w = {dtype}[{inner},{cols}] parameter(1)
  ROOT y = f32[{rows},{cols}] fusion(x, w), kind=kCustom, calls=product
}}"""


@pytest.mark.parametrize(("rows", "cols", "dtype", "cores", "expected"), [
    (128, 320, "f32", 2, 16 * MIB),  # measured: two allocations of 8 MiB
    (128, 64, "f32", 2, 8 * MIB),  # one panel of columns: one core's
    (128, 32, "f32", 2, 4 * MIB),
    (128, 320, "f32", 1, 8 * MIB),
    (64, 128, "bf16", 2, 8 * MIB),
    (128, 128, "f32", 64, 16 * MIB),  # never more than the factor
])  # fmt: skip
def test_every_core_packs_a_panel_as_long_as_the_dot_is_deep(rows, cols, dtype, cores, expected):
    assert packed(given_to_a_library(rows, 32768, cols, dtype), cores=cores) == expected


def test_a_dot_that_no_library_took_is_packed_in_blocks_of_both_factors():
    text = "\nENTRY main {\n" + dot(512, 4096, 1024)
    assert packed(text, cores=2) == 1024 * (512 + 1024) * 4


def test_a_step_without_a_dot_packs_nothing():
    assert packed("\nENTRY main {\n  ROOT x = f32[8] parameter(0)\n}", cores=2) == 0
