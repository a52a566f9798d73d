"""The search updates layer by layer where nothing else fits; what does not go with it is refused with the reason."""

import pytest

from planner_examples import PROCESS, STATIC, FakeCompiler, problem, search
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.units import GIB, MIB

LAYERED = {"layerwise": 2, "effective_batch": 1, "numerics": "exact"}


def found(budget, compiler=None, **changes):
    return search(problem(budget, **LAYERED | changes), compiler or FakeCompiler())


def floor(**changes):
    with pytest.raises(BudgetError) as refusal:
        found(PROCESS + STATIC.state_bytes, **changes)
    return refusal.value.floor_bytes


def test_where_there_is_room_nothing_is_updated_layer_by_layer():
    compiler = FakeCompiler()
    assert found(GIB, compiler).plan.lever("layerwise") == 0
    assert not any(plan.lever("layerwise") for _, plan in compiler.asked)


def test_it_is_what_is_left_where_nothing_else_fits():
    without = floor(layerwise=0)
    plan = found(without - MIB).plan
    assert (plan.lever("layerwise"), plan.lever("remat"), plan.accumulation, plan.numerics) == (2, "block", 1, "exact")
    assert floor() == without - STATIC.parameter_bytes
    assert found(without - MIB, layerwise=1).plan.lever("layerwise") == 1


def test_the_whole_batch_goes_through_at_once():
    compiler = FakeCompiler()
    chosen = found(GIB, compiler, effective_batch=16, pins={"layerwise": 2}).plan
    assert (chosen.micro_batch, chosen.accumulation) == (16, 1)
    assert {plan.accumulation for verb, plan in compiler.asked if plan.lever("layerwise")} == {1}


@pytest.mark.parametrize(
    ("pins", "changes", "said"),
    [
        ({"layerwise": 1}, {}, "before the norm of the whole gradient is known, .*: take --layerwise 2"),
        ({"layerwise": 2}, {"layerwise": 1}, "does not clip: take --layerwise 1"),
        ({"layerwise": 2, "micro_batch": 4}, {}, "whole effective batch of 16 .* --micro-batch 4 splits it"),
        ({"layerwise": 2, "remat": "none"}, {}, "which is --remat block or offload, and --remat none is pinned"),
        (
            {"layerwise": 2, "precision": "float16"},
            {"numerics": "mixed"},
            "could not leave out a step whose gradient overflows",
        ),
        (
            {"layerwise": 2, "fsdp": 4, "optimizer_bits": 8},
            {"devices": 4, "numerics": "compressed"},
            "--fsdp 4 updates parts of layers, and a state in fewer bits is kept in blocks of whole layers",
        ),
        ({"layerwise": 1}, {"layerwise": 0}, "needs a loss in layers .* and toy has not both"),
    ],
    ids=["one pass under a clip", "two without", "accumulation", "remat", "float16", "devices", "recipe"],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(pins, changes, said):
    compiler = FakeCompiler()
    if pins.get("precision") == "float16":
        rates = compiler.rates()
        compiler.rates = lambda: type(rates)(**vars(rates) | {"flops": rates.flops | {"float16": 1e9}})
    with pytest.raises(RecipeError, match=said):
        found(GIB, compiler, **{"effective_batch": 16} | changes, pins=pins)


@pytest.mark.parametrize("pins", [{"micro_batch": 4}, {"remat": "none"}, {"layerwise": 0}], ids=str)
def test_other_pins_leave_it_out_of_the_search(pins):
    compiler = FakeCompiler()
    with pytest.raises(BudgetError):
        found(PROCESS, compiler, effective_batch=16, pins=pins, pinned_by="--plan FILE")  # no way out is looked for
    assert compiler.asked
    assert not any(plan.lever("layerwise") for _, plan in compiler.asked)
