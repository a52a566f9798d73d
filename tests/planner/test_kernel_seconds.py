"""The time of a step from its kernels: beside steps that were timed on an H100 and an H200, and worked by hand."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planner.chips import chip, chips
from plimsoll.planner.hlo.kernels import Kernel, Product
from plimsoll.planner.kernel_seconds import TILE, product_seconds, seconds_of
from plimsoll.planner.speed import CHUNKED_OVER_MEASURED, ESTIMATED_OVER_MEASURED, range_of

TIMED = json.loads(Path(__file__).with_name("card_steps.json").read_text())["steps"]
UNEXPLAINED = "bfloat16, cuDNN, 64, loss in chunks of 8,192"
"""Took 2.3 times as long as the same step without chunks, which neither its bytes nor its kernels account for."""
H100 = chip("h100")
PEAK, SHARE = H100.flops["bfloat16"], H100.kernels["product_share"]
FIELDS = [field.name for field in dataclasses.fields(Product)]

MILLISECONDS = [
    # step, estimated, measured
    ("float32, plain attention, 16", 88.1, 104.7),
    ("bfloat16, plain attention, 16", 59.4, 70.0),
    ("float32, cuDNN, 16", 44.6, 58.7),
    ("bfloat16, cuDNN, scan over layers, 16", 44.6, 46.9),
    ("bfloat16, cuDNN, 16", 28.9, 32.2),
    ("bfloat16, cuDNN, 16 x 4", 111.7, 123.7),
    ("bfloat16, cuDNN, 64", 107.5, 112.5),
    (UNEXPLAINED, 113.7, 256.0),
    ("code 128 x 4, 64 x 1", 8.7, 11.5),
    ("code 128 x 4, 256 x 1", 13.2, 13.1),
    ("97.5M, 8 x 32", 1020, 1004),
    ("97.5M, 16 x 16", 917, 710.4),
    ("sudoku-mlp, 16 x 48", 498, 450),
    ("longcontext-nano, 32,768 long, 1 x 4", 143, 125.4),
    ("code 128 x 4, 64 x 1, on an H200", 7.2, 4.9),
    ("97.5M, 32 x 2, on an H200", 110.1, 136.3),
]
"""All steps that were timed on a card (notes, "Steps timed on cards", has the conditions)."""


def estimated(name):
    """Seconds of a step as a plan says them, from its kernels as the record has them."""
    step = TIMED[name]
    card = chip(step["chip"])
    counted = {}
    for times, moved_bytes, sizes in step["kernels"]:
        product = Product(**dict(zip(FIELDS, sizes, strict=True))) if sizes else None
        counted[Kernel(moved_bytes=moved_bytes, product=product)] = times
    launched = sum(counted.values()) * card.kernels["launch_seconds"]
    work = sum(times * seconds_of(kernel, card) for kernel, times in counted.items())
    return work + launched + card.kernels["call_seconds"] * step["called_by_training"]


def over_measured(name):
    return estimated(name) / TIMED[name]["measured_seconds"]


def test_all_steps_that_were_timed_are_in_the_table():
    assert [name for name, *_ in MILLISECONDS] == list(TIMED)


@pytest.mark.parametrize(("name", "promised", "measured"), MILLISECONDS)
def test_a_step_took_as_long_as_the_range_of_its_plan_says(name, promised, measured):
    step, seconds = TIMED[name], estimated(name)
    assert (1e3 * seconds, 1e3 * step["measured_seconds"]) == (
        pytest.approx(promised, rel=0.01), pytest.approx(measured, rel=0.01)
    )  # fmt: skip
    least, most = range_of(seconds, "kernels", platform="cuda", loss_chunk=step["loss_chunk"])
    assert least <= step["measured_seconds"] <= most


def test_the_ranges_that_plans_show_are_no_wider_than_these_steps():
    ratios = [over_measured(name) for name in TIMED if name != UNEXPLAINED]
    assert (math.floor(100 * min(ratios)) / 100, math.ceil(100 * max(ratios)) / 100) == ESTIMATED_OVER_MEASURED
    assert math.floor(100 * over_measured(UNEXPLAINED)) / 100 == CHUNKED_OVER_MEASURED


def test_smaller_micro_batches_take_longer_as_they_did():
    per_step = {name: over_measured(name) * TIMED[name]["measured_seconds"] for name in TIMED}
    assert per_step["97.5M, 8 x 32"] > 1.05 * per_step["97.5M, 16 x 16"]


def product(rows, cols, inner, *, batch=1, precision="bfloat16", attention=False):
    return Product(precision=precision, batch=batch, rows=rows, cols=cols, inner=inner, attention=attention)


def test_a_product_that_fills_the_card_runs_at_the_measured_share_of_its_peak():
    full = product(TILE * 12, TILE * 11, 4096)  # 132 tiles: one wave
    assert product_seconds(full, H100) == pytest.approx(full.flops / (PEAK * SHARE), rel=1e-12)


@given(rows=st.integers(1, 3_000), more=st.integers(1, 500))
def test_more_rows_never_take_less(rows, more):
    few, many = (product_seconds(product(n, 700, 256), H100) for n in (rows, rows + more))
    assert many >= few


def test_a_kernel_takes_as_long_as_the_slower_of_its_product_and_its_bytes():
    bytes_per_second = 3.35e12 * H100.kernels["memory_share"]
    by_bytes = Kernel(moved_bytes=10**9, product=product(128, 128, 128))
    by_product = Kernel(moved_bytes=1, product=product(8192, 8192, 8192))
    expected = 3 * 10**9 / bytes_per_second + 2 * product_seconds(by_product.product, H100)
    assert 3 * seconds_of(by_bytes, H100) + 2 * seconds_of(by_product, H100) == pytest.approx(expected)


def test_a_card_without_tf32_multiplies_in_float32():
    t4 = chip("t4")
    asked = product(4096, 4096, 4096, precision="tf32")
    assert product_seconds(asked, t4) == product_seconds(dataclasses.replace(asked, precision="float32"), t4) > 0


@pytest.mark.parametrize("card", [each for each in chips() if each.platform == "cuda"], ids=lambda card: card.name)
def test_other_cards_follow_their_data_sheets(card):
    kernel = Kernel(moved_bytes=10**9)

    def bandwidth(chip):
        return chip.memory_bandwidth * chip.kernels["memory_share"]

    share = bandwidth(H100) / bandwidth(card)
    assert seconds_of(kernel, card) == pytest.approx(seconds_of(kernel, H100) * share)
    assert math.isfinite(product_seconds(product(1, 1, 1, precision="float32"), card))
