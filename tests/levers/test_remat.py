"""Rematerialisation: the same numbers, and each step down keeps fewer bytes, in the step that really trains."""

from functools import partial
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.levers.lever import Problem
from plimsoll.levers.records.blocks import REMAT
from plimsoll.levers.remat import keep, rematerialised, scan_blocks, unrolls
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.planner.flops import dot_flops
from plimsoll.types import Compute, Levers


@pytest.mark.slow_except("dots")
@pytest.mark.parametrize("remat", ["dots", "block", "offload"])
def test_what_is_recomputed_is_the_same(remat):
    shape = DecoderShape(vocab=32, width=32, layers=3, heads=1, inner=64)
    ids = np.random.default_rng(0).integers(0, 32, (2, 16)).astype(np.int32)
    expected_task = NextToken(shape, Compute(platform="cpu", levers=Levers(remat="none")))
    task = NextToken(shape, Compute(platform="cpu", levers=Levers(remat=remat)))
    params = jax.jit(expected_task.init)(jax.random.key(0))

    def value_and_grads(task):
        loss = lambda p: task.loss(p, None, {"input_ids": ids, "labels": ids}, None, train=True)[0].total  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(params)

    (value, grads), (expected, expected_grads) = value_and_grads(task), value_and_grads(expected_task)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_only_the_named_results_are_kept_by_dots():
    """The backward pass of tanh(x @ w) needs the dot's result: named, the dot is not done again."""

    def block(x, weight, *, named):
        product = x @ weight
        return jnp.tanh(keep(product) if named else product)

    def trained_flops(remat, named):
        function = rematerialised(partial(block, named=named), remat)
        loss = lambda x, w: jnp.sum(function(x, w))  # noqa: E731
        return dot_flops(jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1)))(jnp.ones((4, 8)), jnp.ones((8, 8))))

    once = 2 * 4 * 8 * 8
    assert trained_flops("none", True) == 3 * once
    assert trained_flops("dots", True) == 3 * once
    assert trained_flops("dots", False) == 4 * once
    assert trained_flops("block", True) == 4 * once


@pytest.mark.parametrize(("remat", "layers"), [("none", 1), ("none", 3), ("dots", 3), ("block", 3), ("offload", 3)])
def test_scanned_blocks_are_applied_in_their_order(remat, layers):
    scales = np.float32([2.0, 3.0, 5.0])[:layers]
    block = lambda x, p: x * p["scale"] + p["shift"]  # noqa: E731
    stacked = {"scale": jnp.asarray(scales), "shift": jnp.arange(layers, dtype=jnp.float32)}
    how = Compute(levers=Levers(remat=remat))
    actual = scan_blocks(block, jnp.ones(4), stacked, unrolled=unrolls(how, layers=layers), compute=how)
    expected = np.ones(4)
    for layer in range(layers):
        expected = expected * scales[layer] + layer
    np.testing.assert_allclose(actual, expected)


@pytest.mark.parametrize(
    ("platform", "remat", "unroll", "layers", "expected"),
    [
        ("cpu", "none", 24, 24, True),
        ("cpu", "none", 24, 25, False),
        ("gpu", "none", 24, 24, True),
        ("gpu", "block", 24, 4, True),
        ("gpu", "offload", 24, 4, False),
        ("gpu", "none", 0, 1, False),
        ("gpu", "none", 48, 48, True),
        ("tpu", "none", 24, 4, False),
    ],
)
def test_where_layers_are_computed_one_after_another(platform, remat, unroll, layers, expected):
    how = Compute(platform=platform, levers=Levers(remat=remat, unroll=unroll))
    assert unrolls(how, layers=layers) == expected


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_unrolled_on_a_gpu_blocks_compute_what_a_loop_does_and_what_is_recomputed_stays_apart(remat):
    """Traced for a GPU and run here: without barriers a compiler would merge what is recomputed with what was kept."""
    stacked = {"scale": jnp.asarray([2.0, 3.0, 0.5]), "shift": jnp.arange(3, dtype=jnp.float32)}
    block = lambda x, p: jnp.sin(keep(x * p["scale"]) + p["shift"])  # noqa: E731

    def loss(stacked, unroll):
        how = Compute(platform="gpu", levers=Levers(remat=remat, unroll=unroll))
        return jnp.sum(scan_blocks(block, jnp.ones(4), stacked, unrolled=unrolls(how, layers=3), compute=how))

    loop, one_by_one = (jax.make_jaxpr(jax.grad(partial(loss, unroll=unroll)))(stacked) for unroll in (0, 24))
    assert ("scan" in str(loop), "scan" in str(one_by_one)) == (True, False)
    if remat != "none":
        assert str(one_by_one).count("prevent_cse=True") == 3
    for actual, expected in zip(
        *(jax.tree.leaves(jax.grad(partial(loss, unroll=unroll))(stacked)) for unroll in (24, 0)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize(("remat", "saved"), [("dots", 0.6), ("block", 1.0)])
def test_a_scan_on_a_cpu_keeps_bits_and_no_float32_copies(remat, saved):
    layers, width = 12, 64

    def block(x, weights):
        up, down = (part.astype(jnp.bfloat16) for part in weights)
        return x + jax.nn.silu(keep(x @ up)) @ down

    def value_and_grads(platform):
        def loss(x, weights):
            how = Compute(platform=platform, levers=Levers(remat=remat, precision="bfloat16"))
            return (
                scan_blocks(block, x, weights, unrolled=unrolls(how, layers=layers), compute=how)
                .astype(jnp.float32)
                .sum()
            )

        return jax.value_and_grad(loss, argnums=(0, 1))

    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((512, width)), jnp.bfloat16)
    up, down = (jnp.asarray(draw.standard_normal(shape) / 16, jnp.float32) for shape in [(12, 64, 256), (12, 256, 64)])
    compiled = {
        platform: jax.jit(value_and_grads(platform)).lower(x, (up, down)).compile() for platform in ("cpu", "any")
    }
    with_bits, without = (each.memory_analysis().temp_size_in_bytes for each in compiled.values())
    stacks = ["f32[12,512,64]" in each.as_text() for each in compiled.values()]  # of the inputs of all blocks
    if version("jaxlib") < "0.11":
        assert with_bits <= saved * without
        assert stacks == [False, True]
    else:  # its XLA keeps them in 16 bits by itself
        assert with_bits <= without
        assert stacks == [False, False]
    for one, other in zip(*(jax.tree.leaves(each(x, (up, down))) for each in compiled.values()), strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


@pytest.mark.parametrize(
    ("changed", "least"),
    [
        ({}, "dots"),
        ({"pins": {"remat": "none"}}, "none"),
        ({"platform": "cuda"}, "none"),
        ({"supported": ("remat",)}, "none"),
        ({"numerics": "exact"}, "none"),
        ({"pins": {"precision": "float32"}}, "none"),
    ],
)
def test_frozen_layers_in_bfloat16_on_a_cpu_are_not_tried_with_everything_kept(changed, least):
    asked = {"platform": "cpu", "numerics": "mixed", "supported": ("remat", "frozen_bits"), "pins": {}} | changed
    problem = Problem(recipe="text", chip="any", effective_batch=8, loss_chunks=(), **asked)
    assert REMAT.tried(problem, None)[0] == least
