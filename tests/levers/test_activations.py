"""Activations in bfloat16: near the same numbers, in half the bytes, and float32 where that is promised."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner_examples import STATIC, problem
from plimsoll.engine.answers import Answers
from plimsoll.errors import RecipeError
from plimsoll.levers.activations import swiglu
from plimsoll.levers.precision import Form, dot, dot_columns, dot_rows
from plimsoll.models.decoder import rms_norm
from plimsoll.models.language import NextToken
from plimsoll.models.rotary import rotary_angles, rotate
from plimsoll.models.shape import DecoderShape, Rotary
from plimsoll.planned import Plan
from plimsoll.planner.space import combinations
from plimsoll.planner.types import Rates
from plimsoll.recipes.registry import preset
from plimsoll.types import Compute, Levers
from subjects import subject_of

ROUNDING = 2.0**-8
"""Of bfloat16, relative."""
SHAPE = DecoderShape(vocab=32, width=32, layers=1, heads=1, inner=64)


def compute(activations, **changes):
    return Compute(levers=Levers({"precision": "bfloat16", "activations": activations, **changes}))


def random(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def relative(one, other):
    one, other = np.float64(one), np.float64(other)
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("form", [dot, dot_rows, dot_columns])
def test_a_product_returns_the_type_of_its_activations_and_a_weights_gradient_that_of_the_weight(form, platform):
    weight, x = random(16, 16), random(16, 16, seed=1, dtype="bfloat16")
    arguments = (weight, x) if form is dot_columns else (x, weight)
    product, pull = jax.vjp(partial(form, compute=Form("bfloat16", platform)), *arguments)
    gradients = pull(product)
    assert product.dtype == jnp.bfloat16
    assert [each.dtype for each in gradients] == [each.dtype for each in arguments]
    exact, pull = jax.vjp(partial(form, compute=Form("bfloat16", "cpu")), *map(jnp.float32, arguments))
    assert relative(product, exact) < ROUNDING
    for gradient, expected in zip(gradients, pull(jnp.float32(product)), strict=True):
        assert relative(gradient, expected) < ROUNDING


FUSED = {
    "norm": (partial(rms_norm, shape=SHAPE), lambda x: (random(x.shape[-1], seed=2),)),
    "rotary": (rotate, lambda x: (rotary_angles(jnp.arange(x.shape[-2]), x.shape[-1], Rotary()),)),
    "swiglu": (swiglu, lambda x: (random(*x.shape, seed=3, dtype=x.dtype),)),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_lies_between_products_is_rounded_once_and_keeps_no_float32(name):
    function, others_of = FUSED[name]
    x = random(4, 8, 16, dtype="bfloat16")
    others = others_of(x)
    result, pull = jax.vjp(function, x, *others)
    wide = [jnp.float32(each) for each in (x, *others)]
    expected, pull_wide = jax.vjp(function, *wide)
    assert result.dtype == jnp.bfloat16
    assert relative(result, expected) < ROUNDING
    towards = random(4, 8, 16, seed=4, dtype="bfloat16")
    for gradient, reference in zip(pull(towards), pull_wide(jnp.float32(towards)), strict=True):
        assert relative(gradient, reference) < ROUNDING
    assert not any(kept.shape == x.shape and kept.dtype == jnp.float32 for kept in jax.tree.leaves(pull))


def loss_of(how):
    task = NextToken(SHAPE, how)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 32, (2, 16)), jnp.int32)
    loss = lambda p: task.loss(p, None, {"input_ids": ids, "labels": ids}, None, train=True)[0].total  # noqa: E731
    return task, loss


def test_loss_logits_and_gradients_are_float32_and_near_those_over_float32_activations():
    task, loss = loss_of(compute("bfloat16"))
    params = task.init(jax.random.key(0))
    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    expected, references = jax.jit(jax.value_and_grad(loss_of(compute("float32"))[1]))(params)
    assert value.dtype == jnp.float32
    assert abs(value - expected) < 1e-3 * expected
    for gradient, reference in zip(jax.tree.leaves(gradients), jax.tree.leaves(references), strict=True):
        assert gradient.dtype == jnp.float32
        assert relative(gradient, reference) < 0.05
    hidden = jax.ShapeDtypeStruct((4, SHAPE.width), jnp.bfloat16)
    assert jax.eval_shape(task.decoder.logits, params["trainable"], hidden).dtype == jnp.float32


FAST = Rates(
    flops={"float32": 1.0, "bfloat16": 2.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="made up"
)


def offered(rates=FAST, **changes):
    about = problem(1, **{"supported": ("precision", "activations"), **changes})
    found = combinations(about, rates, lambda fsdp, storage: STATIC)
    return [(one.levers["precision"], one.levers["activations"]) for one in found]


def test_an_accelerator_that_multiplies_in_bfloat16_keeps_activations_in_it_unless_that_is_pinned_or_not_allowed():
    on_a_card = {"chip": "h100", "platform": "cuda"}
    assert set(offered(**on_a_card)) == {("bfloat16", "bfloat16")}
    assert offered() == [("bfloat16", "bfloat16"), ("bfloat16", "float32")], "on a CPU either may be faster"
    slow = replace(FAST, flops={"float32": 2.0, "bfloat16": 1.0})
    assert offered(slow) == [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")]
    assert set(offered(**on_a_card, numerics="exact")) == {("float32", "float32")}
    assert set(offered(**on_a_card, pins={"activations": "float32"})) == {("bfloat16", "float32")}
    assert set(offered(**on_a_card, supported=("precision",))) == {("bfloat16", "float32")}


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_bfloat16_activations_need_products_in_bfloat16(precision):
    rates = replace(FAST, flops=dict.fromkeys(("float32", "tf32", "float16", "bfloat16"), 1.0))
    with pytest.raises(
        RecipeError, match=rf"--activations bfloat16 needs products in bfloat16, and .* {precision} here"
    ):
        offered(rates, pins={"activations": "bfloat16", "precision": precision})


@pytest.mark.parametrize(
    ("name", "share"),
    [("stories", 0.65), ("sudoku-4x4", 0.4)],
)
def test_a_recipes_step_keeps_less_for_its_backward_pass(name, share):
    """By half of what lies between products; logits, and what a small recipe holds besides, stay as they are."""
    recipe = preset(name)
    answers = Answers(subject_of(recipe))
    micro = min(recipe.effective_batch, 16)
    common = {
        "chip": "cpu", "micro_batch": micro, "accumulation": recipe.effective_batch // micro, "remat": "none",
        "loss_chunk": min(recipe.hints.loss_chunks, default=0), "precision": "bfloat16", "prefetch": 2,
        "async_save": True,
    }  # fmt: skip
    with jax.numpy_dtype_promotion("standard"):  # as recipes are run
        kept = {
            activations: answers.trace(Plan.from_dict(common | {"activations": activations})).temp_bytes
            for activations in ("float32", "bfloat16")
        }
    assert kept["bfloat16"] < share * kept["float32"]
