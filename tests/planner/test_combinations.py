"""The search leaves no lever out that a recipe supports."""

from dataclasses import replace

from planner_examples import problem
from plimsoll.levers.registry import LEVERS
from plimsoll.planner.combinations import combinations
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
    assert {name for name, found in values.items() if len(found) > 1} | set(BY_ITSELF) == set(LEVERS)
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
