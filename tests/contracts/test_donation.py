"""Of every recipe, the compiled step writes its next state over the last one: no leaf of it is ever there twice."""

import re

import jax
import pytest

from plimsoll.planned import Plan
from plimsoll.training.program import Functions, compiled, tree_bytes
from plimsoll.types import Levers, StepOptions
from task_examples import OWN, RECIPES

PLANS = {
    "plain": Plan(
        chip="cpu",
        accumulation=1,
        levers=Levers(micro_batch=8, remat="none", loss_chunk=0, precision="float32", prefetch=1, async_save=True),
    ),
    "levers": Plan(
        chip="cpu",
        accumulation=2,
        levers=Levers(micro_batch=4, remat="block", loss_chunk=16, precision="bfloat16", prefetch=1, async_save=False),
    ),
}


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


@pytest.fixture(scope="module", params=[*RECIPES, "equinox_mlp", "etth1", "plain_jax"])
def recipe(request):
    return (RECIPES | OWN)[request.param]()


def program(recipe, plan, options=StepOptions()):  # noqa: B008  (frozen)
    return Functions(
        recipe.task(plan.compute("cpu")),
        recipe.update_rule(100, plan.storage),
        plan,
        options,
    ).program(
        batch=recipe.spec.batch(plan.effective_batch),
        evaluation_batch=recipe.spec.validation_batch(plan.micro_batch),
    )


def aliases(step):
    """Number of a parameter of the compiled module to the number of the output that takes its bytes."""
    (header,) = re.findall(r"^HloModule .*$", step.as_text(), re.MULTILINE)
    found = re.search(r"input_output_alias=\{(.*?)\}, entry_computation_layout", header)
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", found[1]) if found else []
    return {int(parameter): int(output or 0) for output, parameter in pairs}


@pytest.mark.slow_except(
    "stories-levers",
    "control-levers",
    "longcontext-levers",
    "recommend-gemma-2b-plain",
    "sudoku-mlp-plain",
    "equinox_mlp-levers",
    "etth1-plain",
    "plain_jax-levers",
)
@pytest.mark.parametrize("name", PLANS)
def test_every_byte_of_the_state_is_donated(recipe, name):
    require_donated(recipe, PLANS[name])


@pytest.mark.slow_except("{'weight_bits': 16}")
@pytest.mark.parametrize(
    "form",
    [{"optimizer_bits": 8}, {"optimizer_bits": 8, "weight_bits": 24}, {"weight_bits": 16}, {"precision": "float16"}],
    ids=str,
)
def test_so_is_a_state_in_fewer_bits(form):
    larger = RECIPES["stories"]().replace(width=64)  # kernels large enough to be kept in fewer bits
    require_donated(larger, PLANS["levers"].with_levers(**form))


@pytest.mark.slow_except("{}")
@pytest.mark.parametrize("form", [{}, {"optimizer_bits": 8, "weight_bits": 24}], ids=str)
def test_so_is_a_state_that_is_updated_layer_by_layer(form):
    larger = RECIPES["stories"]().replace(width=64)
    require_donated(larger, PLANS["plain"].with_levers(remat="block", layerwise=2, **form))


def require_donated(recipe, plan):
    lowered = program(recipe, plan)
    step = compiled(lowered.step)
    leaves = jax.tree.leaves(lowered.state)  # the state is the step's first argument and its first output
    found = aliases(step)
    assert set(found) == set(range(len(leaves)))
    assert sorted(found.values()) == list(range(len(leaves)))
    assert step.memory_analysis().alias_size_in_bytes == tree_bytes(lowered.state)


def test_a_step_that_is_not_given_its_state_aliases_nothing():
    """As with --debug-nans. The two figures above are not what any step would show."""
    recipe, plan = RECIPES["stories"](), PLANS["plain"]
    kept = compiled(program(recipe, plan, StepOptions(donates=False)).step)
    assert aliases(kept) == {}
    assert kept.memory_analysis().alias_size_in_bytes == 0
