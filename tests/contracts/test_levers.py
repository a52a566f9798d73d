"""Every lever, turned on in a recipe that supports it, makes the real compiled step need fewer bytes."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

from plimsoll.levers.lora import LoRA
from plimsoll.planned import Plan
from plimsoll.training.program import Functions, compiled, tree_bytes
from plimsoll.types import STORABLE, STORED, Levers, StepOptions
from task_examples import RECIPES

OFF = Plan(
    chip="cpu",
    accumulation=1,
    levers=Levers(micro_batch=16, remat="none", loss_chunk=0, precision="float32", prefetch=1, async_save=False),
)
CHUNKED = OFF.with_levers(loss_chunk=128)
HALF = CHUNKED.with_levers(precision="bfloat16")
SMALL = CHUNKED.with_levers(micro_batch=2, remat="block")
WIDE = {"width": 256, "heads": 4, "seq_len": 32, "batch_size": 2}
LONG = {"seq_len": 1024, "batch_size": 2}


class Row(NamedTuple):
    """Plans without the lever and with it, what it saves, and the share of that which may be left."""

    off: Plan
    on: Plan
    left: float
    of: str = "temporaries"
    size: dict = {}  # noqa: RUF012  (never changed)


LEVERS = {
    "micro_batch": Row(OFF, Plan.from_dict(OFF.to_dict() | {"micro_batch": 4, "accumulation": 4}), 0.6),
    "loss_chunk": Row(OFF.with_levers(remat="block"), CHUNKED.with_levers(remat="block"), 0.6),
    "remat": Row(CHUNKED, CHUNKED.with_levers(remat="block"), 0.8),
    "precision": Row(CHUNKED, CHUNKED.with_levers(precision="bfloat16"), 0.9),
    "activations": Row(HALF, HALF.with_levers(activations="bfloat16"), 0.85),
    "unroll": Row(CHUNKED.with_levers(unroll=0), CHUNKED, 0.95),
    "attention_chunk": Row(
        CHUNKED.with_levers(micro_batch=2), CHUNKED.with_levers(micro_batch=2, attention_chunk=128), 0.7, size=LONG
    ),
    "optimizer_bits": Row(OFF, OFF.with_levers(optimizer_bits=8), 0.75, of="state"),
    "weight_bits": Row(
        OFF.with_levers(optimizer_bits=8), OFF.with_levers(optimizer_bits=8, weight_bits=16), 0.85, of="state"
    ),
    "mlp_chunk": Row(  # of windows so short that their attention is not what needs most
        CHUNKED.with_levers(remat="block"), CHUNKED.with_levers(remat="block").with_levers(mlp_chunk=32), 0.9
    ),
    "layerwise": Row(SMALL, SMALL.with_levers(layerwise=2), 0.5, size=WIDE),
}
FURTHER = {
    "remat dots": Row(CHUNKED, CHUNKED.with_levers(remat="dots"), 0.95),
    "weight_bits 24": Row(
        OFF.with_levers(optimizer_bits=8), OFF.with_levers(optimizer_bits=8, weight_bits=24), 0.95, of="state"
    ),
    "layerwise 1": Row(SMALL, SMALL.with_levers(layerwise=1), 0.5, size=WIDE | {"clip_norm": 0.0}),
}
"""Other values of them, where one recipe is enough. TF32 saves time only, and float16 is for cards: what it saves there
is in docs/results.md, by their compiler."""
ELSEWHERE = {
    "frozen_bits": "tests/contracts/test_levers.py",  # below: no recipe of the examples has frozen weights
    "embedding_bits": "tests/levers/test_embedding_bits.py",  # of a published model beside adapters
    "ema_bits": "tests/levers/test_ema.py",  # of a recipe that keeps an average
    "offload": "tests/levers/test_offload.py",  # in the kind of memory: on a CPU all of it is one
    "deterministic": "tests/levers/test_deterministic.py",  # of equal runs: it saves no bytes
    "fsdp": "tests/levers/test_sharding.py",  # in a process that has several devices
    "prefetch": "tests/planner/test_search.py",  # of the host: not in the step
    "async_save": "tests/planner/test_bytes.py",
}


def supporting():
    """Every recipe with each lever that it supports, but for those whose step is another one's, but for a layer."""
    return [
        (name, lever)
        for name in RECIPES
        for lever in LEVERS
        if lever in {"micro_batch", *RECIPES[name]().hints.levers} and not _is_of_another(name, lever)
    ]


def _is_of_another(name, lever):
    """The step is that of sudoku-attention, of recommend-gemma-2b or of finetune."""
    if name == "recommend-gemma-2b":  # its table of items alone is its own
        return lever not in ("loss_chunk", "optimizer_bits")
    return name in ("sudoku-mlp", "recommend")


SIZE = {"layers": 4, "width": 64, "vocab_size": 2048, "seq_len": 64, "batch_size": 16, "gradient_accumulation_steps": 1}
"""Layers and rows enough that what a lever saves is not lost among small buffers."""


OF_A_KIND = {"puzzles": {"data": "", "vocab_size": 12, "layers": 1}}
"""Planned without data, a model may have any size; its one layer is applied many times."""

OF_A_ROW = {("recommend-gemma-2b", "optimizer_bits"): {"adapter_inner": 2048, "seq_len": 8}}
"""What is learned there is little beside what is frozen, where the adapter is not wide."""
LEFT = {("recommend-gemma-2b", "loss_chunk"): 0.65, ("finetune", "layerwise"): 0.65}
"""Beside the small transformer, what the loss takes is less of the whole. Of the published model of the tests
the embedding is 37 % of the gradient, and no layer."""


@cache
def step_bytes(name, plan, size):
    recipe = RECIPES[name]()
    known = {*recipe.options}
    if recipe.options.get("pretrained", "none") != "none":
        known -= {"width", "layers"}  # they are the published model's
    if recipe.options.get("attention_every", 1) == 0:
        known -= {"heads"}  # of layers that attend, and none does
    sizes = SIZE | OF_A_KIND.get(recipe.kind, {}) | dict(size)
    recipe = recipe.replace(**{name: value for name, value in sizes.items() if name in known})
    program = Functions(
        recipe.task(plan.compute("cpu")),
        recipe.update_rule(100, plan.storage),
        plan,
        StepOptions(),
    ).program(
        batch=recipe.spec.batch(recipe.length.batch_size),
        evaluation_batch=recipe.spec.batch(plan.micro_batch),
    )
    stats = compiled(program.step).memory_analysis()
    return {
        "temporaries": stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "state": stats.argument_size_in_bytes,
    }


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


@pytest.fixture(autouse=True, scope="module")
def _without_levers():
    """What most rows of stories compare with, compiled once and here: `step_bytes` keeps it."""
    with jax.numpy_dtype_promotion("standard"):
        step_bytes("stories", OFF, ())
        step_bytes("stories", SMALL, tuple(WIDE.items()))
        step_bytes("stories", LEVERS["attention_chunk"].off, tuple(LONG.items()))


@pytest.mark.slow_except(
    "stories-loss_chunk",
    "stories-remat",
    "stories-optimizer_bits",
    "stories-micro_batch",
    "stories-layerwise",
    "stories-attention_chunk",
)
@pytest.mark.parametrize(("name", "lever"), supporting())
def test_a_lever_that_is_on_saves_bytes_in_the_compiled_step(name, lever):
    row = LEVERS[lever]
    size = row.size | OF_A_ROW.get((name, lever), {})
    off, on = (step_bytes(name, plan, tuple(size.items())) for plan in (row.off, row.on))
    assert on[row.of] < LEFT.get((name, lever), row.left) * off[row.of]


@pytest.mark.slow_except("remat dots")
@pytest.mark.parametrize("value", FURTHER)
def test_so_does_every_other_value_of_it(value):
    row = FURTHER[value]
    off, on = (step_bytes("stories", plan, tuple(row.size.items())) for plan in (row.off, row.on))
    assert on[row.of] < row.left * off[row.of]


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "block"])
def test_what_the_state_saves_is_not_lost_in_temporaries(remat):
    """Of a step whose gradient is summed: decoding and encoding hold a piece at a time, and so do layers of a scan."""
    accumulating = Plan.from_dict(
        OFF.to_dict() | {"micro_batch": 4, "accumulation": 4, "loss_chunk": 128, "remat": remat}
    )
    whole, small = (
        step_bytes("stories", plan, (("width", 256), ("heads", 4)))
        for plan in (accumulating, accumulating.with_levers(optimizer_bits=8, weight_bits=24))
    )
    saved = whole["state"] - small["state"]
    assert small["temporaries"] - whole["temporaries"] < 0.2 * saved


@cache
def state_bytes(**levers):
    """Of a language model that is frozen but for thin matrices beside two of its kernels."""
    plan = OFF.with_levers(**levers)
    recipe = RECIPES["stories"]().replace(**SIZE)
    task = LoRA(recipe.task(plan.compute("cpu")), "q,v", rank=4)
    batch = recipe.spec.batch(recipe.length.batch_size)
    program = Functions(task, recipe.update_rule(100, plan.storage), plan, StepOptions()).program(
        batch=batch, evaluation_batch=batch
    )
    stats = compiled(program.step).memory_analysis()
    assert stats.alias_size_in_bytes == tree_bytes(program.state)
    return stats.argument_size_in_bytes, stats.temp_size_in_bytes


@pytest.mark.slow
def test_a_frozen_base_takes_fewer_bytes_in_every_form_and_not_all_are_lost_in_temporaries():
    sizes = [state_bytes(frozen_bits=bits) for bits in STORABLE["frozen_bits"]]
    for (larger, before), (smaller, after) in pairwise(sizes):
        assert smaller < 0.85 * larger
        assert smaller + after < larger + before  # on a CPU a table of bfloat16 is widened whole where it is read


def test_the_adapted_model_takes_fewer_bytes_than_the_one_that_is_learned():
    whole = step_bytes("stories", OFF, ())
    state, temporaries = state_bytes()
    assert state < 0.5 * whole["state"]
    assert temporaries < whole["temporaries"]


def test_every_lever_of_a_plan_is_held_somewhere():
    from plimsoll.levers.registry import LEVERS as PLANNED

    assert set(PLANNED) == LEVERS.keys() | ELSEWHERE.keys()
    assert set(STORED) <= set(PLANNED)
    for lever, path in ELSEWHERE.items():
        assert lever in (Path(__file__).parents[2] / path).read_text("utf-8")
