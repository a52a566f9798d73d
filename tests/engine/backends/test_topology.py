"""What is asked about a chip that is not here, answered without its compiler."""

import dataclasses
import json
import typing

import pytest

from for_cuda import answer_for_cuda
from making import made
from planner_examples import plan
from plimsoll.engine.answers import Answers
from plimsoll.engine.backends.accelerator import cublas_workspace
from plimsoll.types import Precision
from plimsoll.units import MIB
from plimsoll.values import to_json
from subjects import subject_of

RECIPE = made(
    "stories", dataset_id="there-is-no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=4
)


PLAN = plan(chip="rtx4090", accumulation=1, precision="bfloat16")


def answers_of(name):
    return Answers(subject_of(RECIPE, name, is_compiled=False))


def test_every_precision_of_a_card_is_answered_on_a_machine_without_it():
    """A CPU refuses TF32, and the arithmetic of a card's step is counted on one."""
    card = answers_of("rtx4090")
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
    h100 = answers_of("h100")
    assert (h100.backend.workspace, answers_of("tpu-v5e-8").backend.workspace) == (32 * MIB, 0)
    with_it = h100.trace(PLAN).temp_bytes
    h100.backend.workspace = 0
    assert with_it - h100.trace(PLAN).temp_bytes > 30 * MIB


ANALYSED = """
import json, sys
from plimsoll.engine.answers import Answers
from plimsoll.planned import Plan
from plimsoll.planner.types import Subject
from plimsoll.values import from_json, to_json

subject, *requests = map(json.loads, sys.argv[1:])
analyses = []
for plan, with_machine_code in requests:
    answers = Answers(from_json(Subject, subject, "subject"))
    answers.backend.options = {} if with_machine_code else answers.backend.options
    analyses.append(answers.analyse(from_json(Plan, plan, "plan")))
print(json.dumps(to_json(analyses)))
"""


def analysed(recipe, name, *requests):
    """What NVIDIA's compiler finds of plans for a card, each with its machine code or without it."""
    questions = [(dataclasses.replace(plan, chip=name), whole) for plan, whole in requests]
    arguments = to_json([subject_of(recipe, name), *questions])
    return answer_for_cuda(ANALYSED, *map(json.dumps, arguments))


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
