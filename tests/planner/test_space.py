"""The search leaves no lever out that a recipe supports."""

from dataclasses import replace

import pytest

from planner_examples import STATIC, plan, problem
from plimsoll.errors import RecipeError
from plimsoll.levers.registry import LEVERS
from plimsoll.planner.space import combinations, micro_batches, smaller
from plimsoll.planner.types import Rates
from plimsoll.types import STORABLE, STORED
from plimsoll.units import GIB, MIB

RATES = Rates(
    flops={"float32": 1.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="made up",
    host_link_bytes=1.0,
)  # fmt: skip
MOVABLE = {"optimizer": 100, "frozen": 200}


def space(asked, rates=RATES, movable=MOVABLE):
    """Of a model whose state, stored in fewer bits, is smaller."""

    def static(fsdp, storage):
        bits = storage.optimizer_bits + storage.weight_bits + storage.frozen_bits + storage.ema_bits
        return replace(STATIC, movable=movable, other_bytes=bits)

    return combinations(asked, rates, static)


def test_the_search_comes_to_every_lever():
    """All of them supported, nothing pinned, the numbers free: each has a value besides that of a plain plan."""
    rates = replace(RATES, flops={"float32": 1.0, "bfloat16": 1.02})
    about = {"supported": (*LEVERS, "remat_offload", "frozen_offload"), "numerics": "compressed"}
    about |= {"attention_chunks": (64,), "mlp_chunks": (64,), "layerwise": 2, "effective_batch": 128}
    tried = space(problem(1, **about, chip="h200x2", platform="cuda", devices=2), rates)
    values = {name: {one.levers[name] for one in tried} for name in tried[0].levers}
    by_user = {name for name, lever in LEVERS.items() if lever.by_user}
    assert {name for name, found in values.items() if len(found) > 1} | set(BY_ITSELF) == set(LEVERS) - by_user
    assert all(values[name] == {LEVERS[name].plain} for name in by_user)
    assert values["offload"] == {"none", "optimizer", "frozen", "all"}
    assert values["remat"] == {"none", "dots", "block", "offload"}
    searched = {name: set(may_be) for name, may_be in STORABLE.items()}
    searched |= {"optimizer_bits": {32, 8}, "embedding_bits": {16}}  # the others are the user's choice
    assert {name: values[name] for name in STORED} == searched


BY_ITSELF = ("micro_batch", "prefetch", "async_save")
"""Searched for every combination of the others: tests/planner/test_search.py."""


def test_recomputing_blocks_beside_whole_logits_is_not_offered_where_the_loss_may_be_in_chunks():
    """It saves little, and each combination costs compiles. Where there is no chunk to choose, it is all there is."""

    def offered(**changes):
        return {(one.levers["remat"], one.levers["loss_chunk"]) for one in space(problem(1, **changes))}

    assert offered() == {("none", 0), ("none", 256), ("dots", 256), ("block", 256)}
    assert offered(pins={"loss_chunk": 0}) == {("none", 0), ("dots", 0), ("block", 0)}


def test_a_gpu_is_offered_few_large_chunks_of_the_loss_and_whole_logits_beside_recomputed_blocks():
    def offered(batch):
        card = problem(1, chip="h100", platform="cuda", effective_batch=batch)
        return {(one.levers["remat"], one.levers["loss_chunk"]) for one in space(card)}

    remats = ("none", "dots", "block")
    assert offered(128) == {(remat, chunk) for remat in remats for chunk in (0, 8_192, 2_048)}
    assert offered(64) == {(remat, chunk) for remat in remats for chunk in (0, 2_048)}, (
        "64 x 128 are no more than 8,192"
    )
    assert offered(16) == {(remat, 0) for remat in remats}


def test_a_gpu_is_offered_a_loop_over_layers_where_that_saves_bytes_and_nothing_else_beside_the_host():
    about = {"supported": ("remat", "unroll", "layerwise", "offload"), "loss_chunks": (), "layerwise": 2}
    card = problem(1, chip="h100", platform="cuda", **about)
    named = ("unroll", "remat", "layerwise", "offload")
    offered = {tuple(one.levers[name] for name in named) for one in space(card)}
    everything = {"none", "dots", "block"}
    assert offered == {
        *((24, remat, 0, "none") for remat in everything),
        *((0, remat, 0, "none") for remat in everything - {"none"}),
        *((0, remat, 0, "optimizer") for remat in everything),
        (24, "block", 2, "none"),
    }
    assert {one.levers["unroll"] for one in space(problem(1, **about))} == {24}
    with pytest.raises(RecipeError, match=r"--unroll 0 would change nothing on tpu-v5e-1: layers are a loop on a TPU"):
        space(problem(1, chip="tpu-v5e-1", platform="tpu", pins={"unroll": 0}, **about))


MOVING = {"chip": "h200", "platform": "cuda", "supported": ("offload", "frozen_offload")}


@pytest.mark.parametrize(
    ("movable", "moved"),
    [
        (MOVABLE, ["none", "optimizer", "frozen", "all"]),
        ({"optimizer": 100}, ["none", "optimizer"]),
        ({"frozen": 1}, ["none", "frozen"]),
        ({"optimizer": 0}, ["none"]),
    ],
    ids=str,
)
def test_what_a_model_has_nothing_of_is_not_moved(movable, moved):
    assert {one.levers["offload"] for one in space(problem(1, **MOVING), movable=movable)} == {*moved}


def test_a_pin_that_would_move_nothing_is_refused_with_what_is_lacking():
    pinned = problem(1, **MOVING, pins={"offload": "optimizer"})
    with pytest.raises(RecipeError, match=r"--offload optimizer would change nothing: toy has no optimizer state"):
        space(pinned, movable={"frozen": 1})
    assert {one.levers["offload"] for one in space(pinned)} == {"optimizer"}


@pytest.mark.parametrize(
    ("batch", "devices", "pinned", "micros"),
    [
        (12, 1, None, [1, 2, 3, 4, 6, 12]),
        (16, 1, None, [1, 2, 4, 8, 16]),
        (24, 4, None, [4, 8, 12, 24]),
        (12, 4, 4, [4]),
    ],
)
def test_micro_batches_divide_the_batch_and_give_every_device_as_much(batch, devices, pinned, micros):
    pins = {} if pinned is None else {"micro_batch": pinned}
    assert micro_batches(problem(1, effective_batch=batch, devices=devices, pins=pins)) == micros


@pytest.mark.parametrize(
    ("batch", "devices", "pinned", "words"),
    [
        (10, 4, None, "effective batch of 10 .* a multiple of 4: 4 devices"),
        (12, 1, 0, "--micro-batch 0 .* effective batch of 12"),
        (12, 1, 5, "--micro-batch 5 .* effective batch of 12"),
        (12, 4, 6, "--micro-batch 6 .* a multiple of 4: 4 devices"),
    ],
)
def test_other_micro_batches_are_refused(batch, devices, pinned, words):
    pins = {} if pinned is None else {"micro_batch": pinned}
    with pytest.raises(RecipeError, match=words):
        micro_batches(problem(1, effective_batch=batch, devices=devices, pins=pins))


WHOLE_SPACE = {
    "effective_batch": 12,
    "numerics": "compressed",
    "supported": ("precision", "remat", "loss_chunk", "layerwise", "optimizer_bits", "weight_bits"),
    "layerwise": 2,
}


def test_no_two_candidates_are_the_same_step_and_each_has_the_levers_of_its_combination():
    asked = problem(1, **WHOLE_SPACE)
    found = space(asked, replace(RATES, flops={"float32": 1.0, "bfloat16": 2.0}))
    steps = [step for one in found for step in one.steps.values()]
    assert len(set(steps)) == len(steps) > 50
    for one in found:
        chunked = one.levers["loss_chunk"] and one.levers["remat"] == "none"  # of 256 tokens, and an example has 128
        micros = {3, 4, 6, 12} if chunked else {1, 2, 3, 4, 6, 12}
        assert {*one.plans} == ({12} if one.levers["layerwise"] else micros)
        for micro, each in one.plans.items():
            assert (each.micro_batch, each.effective_batch) == (micro, 12)
            assert {name: each.lever(name) for name in one.levers} == one.levers
            assert (each.lever("async_save"), each.lever("prefetch")) == (True, 2), "its roomiest"


def test_parents_come_first_and_differ_in_one_lever_from_which_a_value_is_left_out_only_where_it_must():
    found = space(problem(1, **WHOLE_SPACE), replace(RATES, flops={"float32": 1.0, "bfloat16": 2.0}))
    place = {one: at for at, one in enumerate(found)}
    assert [one for one in found if not one.parents] == found[:1], "all others can be had from the fastest"
    stored = {*STORED}
    for one in found:
        for parent in one.parents:
            assert place[parent] < place[one]
            differ = {name for name in one.levers if one.levers[name] != parent.levers[name]}
            assert len(differ) == 1 or differ <= stored
            assert (one.family == parent.family) == (differ <= stored)


def test_only_what_rates_cannot_tell_has_a_hope():
    """On a CPU, a loss in chunks, which stay in its cache, and activations in float32."""
    about = {"supported": ("precision", "remat", "loss_chunk", "activations")}
    on_a_cpu = space(problem(1, **about), replace(RATES, flops={"float32": 1.0, "bfloat16": 2.0}))
    hopes = {}
    for one in on_a_cpu:
        hopes.setdefault((one.levers["loss_chunk"] > 0, one.levers["activations"]), set()).add(one.hope)
    assert hopes.pop((False, "bfloat16")) == {1.0}
    (chunked,), (wide,) = hopes[True, "bfloat16"], hopes[False, "float32"]
    assert 0.5 < chunked < 1
    assert 0.5 < wide < 1
    assert hopes[True, "float32"] == {chunked * wide}
    on_a_card = space(problem(1, **about, chip="h100", platform="cuda"))
    assert {one.hope for one in on_a_card} == {1.0}


def test_first_a_save_waits_and_then_fewer_and_fewer_batches_are_made_ready():
    asked = problem(GIB, host_bytes={depth: {"data": depth * MIB} for depth in (1, 2, 3, 4)})
    variants = [
        (one.lever("async_save"), one.lever("prefetch")) for one in smaller(plan(async_save=True, prefetch=3), asked)
    ]
    assert variants == [(True, 3), (False, 3), (False, 2), (False, 1)]
