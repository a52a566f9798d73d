"""The search leaves no lever out that a recipe supports."""

import re
from dataclasses import replace

import pytest

from planner_examples import STATIC, problem
from plimsoll.errors import RecipeError
from plimsoll.levers.registry import LEVERS
from plimsoll.planner.combinations import combinations, micro_batches, require_moved, unmovable
from plimsoll.planner.types import Rates
from plimsoll.types import STORABLE, STORED


def test_the_search_comes_to_every_lever():
    """All of them supported, nothing pinned, the numbers free: each has a value besides that of a plain plan."""
    rates = Rates(
        flops={"float32": 1.0, "bfloat16": 1.02}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0,
        source="made up", host_link_bytes=1.0,
    )  # fmt: skip
    about = {"supported": (*LEVERS, "remat_offload", "frozen_offload"), "numerics": "compressed"}
    card = problem(1, **about, chip="h200", platform="cuda", attention_chunks=(64,), layerwise=2)
    tried = [*combinations(card, rates), *combinations(replace(card, chip="h200x8", devices=8), rates)]
    values = {name: {one[name] for one in tried} for name in tried[0]}
    by_user = {name for name, lever in LEVERS.items() if lever.by_user}
    assert {name for name, found in values.items() if len(found) > 1} | set(BY_ITSELF) == set(LEVERS) - by_user
    assert all(values[name] == {LEVERS[name].plain} for name in by_user)
    assert values["offload"] == {"none", "optimizer", "frozen", "all"}
    assert values["remat"] == {"none", "dots", "block", "offload"}
    assert {name: values[name] for name in STORED} == {name: set(may_be) for name, may_be in STORABLE.items()}


BY_ITSELF = ("micro_batch", "prefetch", "async_save")
"""Searched for every combination of the others: tests/planner/test_search.py."""


def test_recomputing_blocks_beside_whole_logits_is_not_offered_where_the_loss_may_be_in_chunks():
    """It saves little, and each combination costs compiles. Where there is no chunk to choose, it is all there is."""
    rates = Rates(flops={"float32": 1.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="made up")

    def offered(**changes):
        return {(one["remat"], one["loss_chunk"]) for one in combinations(problem(1, **changes), rates)}

    assert offered() == {("none", 0), ("none", 256), ("dots", 256), ("block", 256)}
    assert offered(pins={"loss_chunk": 0}) == {("none", 0), ("dots", 0), ("block", 0)}


def test_a_gpu_is_offered_few_large_chunks_of_the_loss_and_whole_logits_beside_recomputed_blocks():
    rates = Rates(flops={"float32": 1.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="made up")
    card = problem(1, chip="h100", platform="cuda")
    offered = {(one["remat"], one["loss_chunk"]) for one in combinations(card, rates)}
    assert offered == {(remat, chunk) for remat in ("none", "dots", "block") for chunk in (0, 8_192, 2_048)}


def test_a_gpu_is_offered_a_loop_over_layers_where_that_saves_bytes_and_nothing_else_beside_the_host():
    rates = Rates(
        flops={"float32": 1.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="made up",
        host_link_bytes=1.0,
    )  # fmt: skip
    about = {"supported": ("remat", "unroll", "layerwise", "offload"), "loss_chunks": (), "layerwise": 2}
    card = problem(1, chip="h100", platform="cuda", **about)
    offered = {(one["unroll"], one["remat"], one["layerwise"], one["offload"]) for one in combinations(card, rates)}
    everything = {"none", "dots", "block"}
    assert offered == {
        *((24, remat, 0, "none") for remat in everything),
        *((0, remat, 0, "none") for remat in everything - {"none"}),
        *((0, remat, 0, "optimizer") for remat in everything),
        (24, "block", 2, "none"),
    }
    on_a_cpu = combinations(problem(1, **about), rates)
    assert {one["unroll"] for one in on_a_cpu} == {24}
    with pytest.raises(RecipeError, match=r"--unroll 0 would change nothing on tpu-v5e-1: layers are a loop on a TPU"):
        list(combinations(problem(1, chip="tpu-v5e-1", platform="tpu", pins={"unroll": 0}, **about), rates))


MOVABLE = {"optimizer": 100, "frozen": 200}


@pytest.mark.parametrize(
    ("movable", "lacking"),
    [
        (MOVABLE, {"none": [], "optimizer": [], "frozen": [], "all": []}),
        ({"optimizer": 100}, {"none": [], "optimizer": [], "frozen": ["frozen"], "all": ["frozen"]}),
        ({"frozen": 1}, {"none": [], "optimizer": ["optimizer"], "frozen": [], "all": ["optimizer"]}),
        ({"optimizer": 0, "frozen": 0}, {"none": [], "optimizer": ["optimizer"], "all": ["optimizer", "frozen"]}),
    ],
    ids=str,
)
def test_what_a_model_has_nothing_of_cannot_be_moved(movable, lacking):
    static = replace(STATIC, movable=movable)
    assert {offload: unmovable(static, offload) for offload in lacking} == lacking


@pytest.mark.parametrize(
    ("movable", "offload", "words"),
    [
        ({"frozen": 1}, "optimizer", "has no optimizer state large enough to be moved. Leave it out"),
        (
            {"optimizer": 1},
            "all",
            "has no frozen weights large enough to be moved (of what is frozen, layers that are stacked along a first"
            " axis are). Leave it out",
        ),
    ],
)
def test_a_pin_that_would_move_nothing_is_refused_with_what_is_lacking(movable, offload, words):
    with pytest.raises(RecipeError, match=re.escape(f"--offload {offload} would change nothing: toy {words}")):
        require_moved(problem(1, pins={"offload": offload}), replace(STATIC, movable=movable))
    require_moved(problem(1, pins={"offload": offload}), replace(STATIC, movable=MOVABLE))
    require_moved(problem(1), replace(STATIC, movable={}))


@pytest.mark.parametrize(
    ("batch", "devices", "pinned", "micros"),
    [
        (12, 1, None, [1, 2, 3, 4, 6, 12]),
        (16, 1, None, [1, 2, 4, 8, 16]),
        (1, 1, None, [1]),
        (24, 4, None, [4, 8, 12, 24]),
        (12, 1, 3, [3]),
        (12, 1, 1, [1]),
        (12, 4, 4, [4]),
    ],
)
def test_micro_batches_divide_the_batch_and_give_every_device_as_much(batch, devices, pinned, micros):
    pins = {} if pinned is None else {"micro_batch": pinned}
    assert micro_batches(problem(1, effective_batch=batch, devices=devices, pins=pins)) == micros


@pytest.mark.parametrize(
    ("batch", "devices", "pinned", "words"),
    [
        (10, 4, None, "effective batch of 10 .* among the 4 devices .* a multiple of 4"),
        (12, 1, 0, "--micro-batch 0 does not divide"),
        (12, 1, -1, "--micro-batch -1 does not divide"),
        (12, 1, 5, "--micro-batch 5 does not divide"),
        (12, 4, 6, "--micro-batch 6 cannot be divided among the 4 devices"),
    ],
)
def test_other_micro_batches_are_refused(batch, devices, pinned, words):
    pins = {} if pinned is None else {"micro_batch": pinned}
    with pytest.raises(RecipeError, match=words):
        micro_batches(problem(1, effective_batch=batch, devices=devices, pins=pins))
