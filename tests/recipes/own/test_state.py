"""A model with state (batch norm): its own loop learns the same, no plan changes it, and a run keeps it."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import plimsoll
from own_files import with_, write
from plimsoll.api.plan import plan
from plimsoll.errors import RecipeError
from plimsoll.recipes.own import pickled
from plimsoll.recipes.own.task import require_sound
from plimsoll.recipes.registry import preset
from plimsoll.training.step import StepSpec, make_evaluate, make_init, make_step
from plimsoll.types import Compute
from small_tasks import relative_distance

EXAMPLE = Path(__file__).parents[3] / "docs/examples/flax_batchnorm.py"
EXAMPLES, STEPS = 16, 4


@pytest.fixture(scope="module")
def recipe():
    return preset(f"{EXAMPLE}", batch_size=EXAMPLES)


@pytest.fixture(scope="module")
def batches(recipe):
    images = recipe.origin.sets[0]
    rows = [[images[step * EXAMPLES + n] for n in range(EXAMPLES)] for step in range(STEPS)]
    return [{name: np.stack([row[name] for row in batch]) for name in batch[0]} for batch in rows]


def learned(recipe, batches, *, accumulation=1):
    """Returns the state after a step for each batch, and the losses."""
    task = recipe.task(Compute())
    state = jax.jit(make_init(task, recipe.update_rule(STEPS)))(np.uint32(3))
    step = jax.jit(make_step(task, recipe.update_rule(STEPS), StepSpec(accumulation=accumulation)))
    losses = []
    for batch in batches:
        state, report = step(state, batch)
        losses.append(float(report["loss"]))
    return state, losses


def test_it_learns_what_its_own_loop_learns(recipe, batches):
    state, losses = learned(recipe, batches)

    # The loop that Flax shows: one model, its statistics updated where they are.
    made = sys.modules[recipe.origin.loss.__module__].Reader
    model = made(nnx.Rngs(jax.random.split(jax.random.key(np.uint32(3)))[0]))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, batch):
        def mean(model):
            logits = model(batch["image"], train=True)
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["digit"]))

        value, gradient = nnx.value_and_grad(mean)(model)
        optimizer.update(model, gradient)
        return value

    own = [float(step(model, optimizer, batch)) for batch in batches]
    assert own == pytest.approx(losses, rel=1e-5)
    assert relative_distance(state["params"]["state"], nnx.state(model, nnx.BatchStat)) < 1e-5
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("group", "accumulations"), [(4, (1, 2, 4)), (8, (1, 2))])
def test_no_plan_changes_what_is_learned(recipe, batches, group, accumulations):
    grouped = recipe.replace(norm_group=group)
    whole, *split = [learned(grouped, batches, accumulation=accumulation)[0] for accumulation in accumulations]
    for state in split:
        assert relative_distance(state["params"], whole["params"]) < 1e-4
    other = learned(recipe, batches)[0]
    assert relative_distance(other["params"]["state"], whole["params"]["state"]) > 1e-3


def test_an_evaluation_reads_the_statistics_and_is_a_sum_over_examples(recipe, batches):
    state, _ = learned(recipe, batches)
    evaluate = jax.jit(make_evaluate(recipe.task(Compute())))
    whole = evaluate(state["params"], batches[0])["loss"]
    halves = [
        evaluate(state["params"], {name: leaf[at : at + 8] for name, leaf in batches[0].items()}) for at in (0, 8)
    ]
    assert float(sum(half["loss"].total for half in halves)) == pytest.approx(float(whole.total), rel=1e-5)
    fresh = state["params"] | {"state": jax.tree.map(lambda leaf: 9 * leaf, state["params"]["state"])}
    assert float(evaluate(fresh, batches[0])["loss"].total) != pytest.approx(float(whole.total), rel=1e-2)


def test_it_is_sound_and_known_by_what_it_computes(recipe, batches):
    require_sound(recipe.origin, {name: leaf[:2] for name, leaf in batches[0].items()})
    assert pickled._computed(recipe) == pickled._computed(preset(f"{EXAMPLE}"))


@pytest.mark.parametrize(
    ("options", "pins", "words"),
    [
        ({}, {"micro_batch": 8}, "--micro-batch 8 .* a multiple of 16: .*--norm-group"),
        ({"norm_group": 4}, {"micro_batch": 2}, "--micro-batch 2 .* a multiple of 4: .*--norm-group"),
        ({"norm_group": 3}, {}, "--norm-group 3 does not divide the effective batch of 16"),
    ],
)
def test_a_batch_that_cannot_be_split_so_is_refused(options, pins, words):
    with pytest.raises(RecipeError, match=words):
        plan(preset(f"{EXAMPLE}", batch_size=EXAMPLES, **options), memory="600MiB", pins=pins)


INIT = "lambda key: {'trainable': {'bias': jnp.zeros(())}, 'state': jnp.zeros(3)}"
WRONG = {
    "no state": ({"loss": "lambda p, b, state: (jnp.sum(b['y'] * p['bias']), 4, {}, state)"}, "init returns none"),
    "not taken": ({"init": INIT}, "the loss takes none"),
    "not returned": (
        {
            "init": INIT,
            "loss": "lambda p, b, state: (jnp.sum(b['y'] * p['bias']), 4)",
        },
        r"returns the state None, and was given float32\[3\]: in training",
    ),
    "another shape": (
        {
            "init": INIT,
            "loss": "lambda p, b, state: (jnp.sum(b['y'] * p['bias']), 4, {}, state[:2])",
        },
        r"returns the state float32\[2\], and was given float32\[3\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_state_that_is_not_kept_is_refused_from_its_shapes(tmp_path, case):
    functions, words = WRONG[case]
    task = preset(write(tmp_path, with_(**functions))).task(Compute())
    batch = {"x": jax.ShapeDtypeStruct((4, 2), "float32"), "y": jax.ShapeDtypeStruct((4,), "float32")}

    def traced():
        state = jax.eval_shape(make_init(task, optax.sgd(0.1)), jax.ShapeDtypeStruct((), "uint32"))
        jax.eval_shape(make_step(task, optax.sgd(0.1), StepSpec(accumulation=1)), state, batch)

    with pytest.raises(RecipeError, match=words):
        traced()


def test_norm_groups_are_of_models_with_state(tmp_path):
    recipe = preset(write(tmp_path, with_()), norm_group=2)
    with pytest.raises(RecipeError, match="--norm-group 2 is of a model with state"):
        _ = recipe.hints.normalised_together


def test_a_run_keeps_its_state_and_continues_to_the_same_bits(tmp_path):
    options = {"memory": "600MiB", "batch_size": 32, "norm_group": 8, "steps": 6, "pins": {"micro_batch": 16}}
    whole = plimsoll.train(str(EXAMPLE), run=tmp_path / "whole", **options)
    plimsoll.train(str(EXAMPLE), run=tmp_path / "stopped", max_steps=3, **options)
    continued = plimsoll.train(str(EXAMPLE), run=tmp_path / "stopped", **options)
    assert continued.fingerprint == whole.fingerprint
    params = continued.params()
    assert params.keys() == {"trainable", "state"}
    assert json.loads((tmp_path / "whole/plan.json").read_text())["plan"]["accumulation"] == 2
