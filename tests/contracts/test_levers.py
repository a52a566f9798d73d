"""Every lever, turned on in a recipe that honours it, makes the real compiled step need fewer bytes."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import pytest
from task_examples import RECIPES

import plimsoll.levers
from plimsoll.training.program import compiled, lower
from plimsoll.types import Plan

OFF = Plan(
    chip="cpu", micro_batch=16, accumulation=1, remat="none", loss_chunk=0, precision="float32", prefetch=1,
    async_save=False,
)  # fmt: skip
LEVERS = {
    "micro-batch": (OFF, replace(OFF, micro_batch=4, accumulation=4), 0.6),
    "loss_chunk": (replace(OFF, remat="block"), replace(OFF, remat="block", loss_chunk=128), 0.6),
    "remat": (replace(OFF, loss_chunk=128), replace(OFF, remat="block", loss_chunk=128), 0.8),
    "precision": (replace(OFF, loss_chunk=128), replace(OFF, precision="bfloat16", loss_chunk=128), 0.9),
}
"""Name to a plan without it, the same with it, and the share of the bytes that may be left."""


def honouring():
    everywhere = {"micro-batch"}
    return [(name, lever) for name in RECIPES for lever in LEVERS if lever in {*everywhere, *RECIPES[name]().honoured}]


SIZE = {"layers": 4, "width": 64, "vocab_size": 2048, "seq_len": 64, "batch_size": 16, "gradient_accumulation_steps": 1}
"""Layers and rows enough that what a lever saves is not lost among small buffers."""


@cache
def step_bytes(name, plan, *, seq_len=SIZE["seq_len"], heads=1, **compute):
    """`compute` holds levers of the model that are in no plan yet."""
    recipe = replace(RECIPES[name](), **SIZE | {"seq_len": seq_len, "heads": heads})
    program = lower(
        recipe.task(replace(plan.compute("cpu"), **compute)),
        recipe.optimizer(100),
        plan,
        batch=recipe.batch_spec(16),
        evaluation_batch=recipe.batch_spec(plan.micro_batch),
    )
    stats = compiled(program.step).memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


@pytest.mark.parametrize(("name", "lever"), honouring())
def test_a_lever_that_is_on_saves_bytes_in_the_compiled_step(name, lever):
    off, on, left = LEVERS[lever]
    assert step_bytes(name, on) < left * step_bytes(name, off)


BESIDES_A_PLAN = {"attention_chunk"}
"""Levers of `Compute` that no plan holds yet: one that does is a row of LEVERS."""


@pytest.mark.parametrize("name", ["stories", "code"])
def test_attention_in_blocks_saves_bytes_in_the_compiled_step(name):
    plan = replace(OFF, micro_batch=4, accumulation=4, loss_chunk=128, remat="block")
    whole, in_blocks = (step_bytes(name, plan, seq_len=512, heads=4, attention_chunk=n) for n in (0, 64))
    assert in_blocks < 0.6 * whole


def test_every_lever_file_is_held_here():
    files = {path.stem for path in Path(plimsoll.levers.__path__[0]).glob("*.py")} - {"__init__"}
    over_devices = {"sharding"}  # held in tests/levers/test_sharding.py, in a process that has several
    numbers_only = {"loss_scale"}  # saves nothing by itself; tests/levers/test_loss_scale.py
    held = {"precision", "remat", "chunked_loss", "attention"}
    assert files == held | over_devices | numbers_only, "a new lever needs a row in LEVERS"


def test_every_lever_of_a_plan_that_reaches_a_model_is_held_here():
    seen = set(vars(OFF.compute("cpu"))) - {"platform"}
    assert seen == set(LEVERS) - {"micro-batch"} | BESIDES_A_PLAN
