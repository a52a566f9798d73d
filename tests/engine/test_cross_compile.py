"""What is asked about a chip that is not here, answered without its compiler."""

import dataclasses
import json
import typing

import pytest

from for_cuda import answer_for_cuda
from making import made
from planner_examples import plan
from plimsoll.engine.cross_compile import CrossCompiler, cublas_workspace
from plimsoll.planner.chips import chip
from plimsoll.recipes.saved import to_dict
from plimsoll.types import Precision
from plimsoll.units import MIB

RECIPE = made(
    "stories", dataset_id="there-is-no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=4
)


PLAN = plan(chip="rtx4090", accumulation=1, precision="bfloat16")


def compiler_of(name: str) -> CrossCompiler:
    about = {"recipe": to_dict(RECIPE), "steps": 10, "chip": dataclasses.asdict(chip(name)), "compiled": False}
    return CrossCompiler(about)


def test_every_precision_of_a_card_is_answered_on_a_machine_without_it():
    """A CPU refuses TF32, and the arithmetic of a card's step is counted on one."""
    card = compiler_of("rtx4090")
    plans = [PLAN.with_levers(precision=precision) for precision in typing.get_args(Precision)]
    counted = {card.analyse(each).flops for each in plans}
    assert len(counted) == 1
    assert min(counted) > 0


def test_products_of_newer_cards_have_a_larger_workspace_and_other_chips_none():
    assert [cublas_workspace(capability) for capability in ("7.5", "8.0", "9.0a", "10.0a")] == [
        4 * MIB,
        4 * MIB,
        32 * MIB,
        32 * MIB,
    ]
    h100 = compiler_of("h100")
    assert (h100.workspace, compiler_of("tpu-v5e-8").workspace) == (32 * MIB, 0)
    with_it = h100.trace(PLAN).temp_bytes
    h100.workspace = 0
    assert with_it - h100.trace(PLAN).temp_bytes > 30 * MIB


ANALYSED = """
import dataclasses, json, sys
from plimsoll.engine.cross_compile import CrossCompiler
from plimsoll.planner.child import plan_of

about, *requests = map(json.loads, sys.argv[1:])
found = []
for plan, with_machine_code in requests:
    compiler = CrossCompiler(about)
    compiler.options = {} if with_machine_code else compiler.options
    found.append(dataclasses.asdict(compiler.analyse(plan_of(plan))))
print(json.dumps(found))
"""


def analysed(recipe, name, *requests):
    """What NVIDIA's compiler finds of plans for a card, each with its machine code or without it."""
    about = {"recipe": to_dict(recipe), "steps": 10, "chip": dataclasses.asdict(chip(name)), "compiled": True}
    asked = [(dataclasses.replace(plan, chip=name).to_dict(), whole) for plan, whole in requests]
    return answer_for_cuda(ANALYSED, *map(json.dumps, (about, *asked)))


@pytest.mark.slow
def test_bytes_and_kernels_are_those_of_a_step_compiled_with_its_machine_code():
    without, with_it = analysed(RECIPE, "h100", (PLAN, False), (PLAN, True))
    assert without == with_it
    assert without["kernels"] > 0


@pytest.mark.slow
def test_several_cards_share_a_batch_whose_attention_is_cudnns():
    """The partitioner cannot split cuDNN's kernel, and refused it among several cards."""
    recipe = RECIPE.replace(width=128, heads=2, seq_len=128, batch_size=8)
    plans = [dataclasses.replace(PLAN.with_levers(micro_batch=8, fsdp=fsdp), devices=4) for fsdp in (1, 2, 4)]
    assert all(found["kernels"] > 0 for found in analysed(recipe, "h100x4", *((plan, False) for plan in plans)))
