"""Attention in blocks: the numbers and gradients of the whole square, in bytes that grow with the length alone."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiled_bytes import temporary_bytes
from plimsoll.levers import attention
from plimsoll.levers.attention import causal_attention, kernel
from plimsoll.levers.cudnn_workspace import Call
from plimsoll.levers.lever import Problem
from plimsoll.levers.records.blocks import ATTENTION_CHUNK, attention_blocks_of, without_cudnn
from plimsoll.planner import liveness
from plimsoll.planner.flops import dot_flops, inner_jaxprs
from plimsoll.types import Compute, Levers

CPU = Compute(platform="cpu")


def changed(compute, **levers):
    return replace(compute, levers=Levers(compute.levers | levers))


def heads(length, *, batch=2, heads=2, width=16):
    random = np.random.default_rng(0)
    return [random.normal(size=(batch, heads, length, width)).astype(np.float32) for _ in range(3)]


def dense(query, key, value, *, causal=True, segments=None, window=0, scale=None, cap=0.0):
    """Every form of attention, by the whole square."""
    group = query.shape[1] // key.shape[1]
    key, value = (jnp.repeat(x, group, axis=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bhlw,bhmw->bhlm", query, key, precision="highest") * scale
    scores = cap * jnp.tanh(scores / cap) if cap else scores
    apart = jnp.arange(query.shape[2])[:, None] - jnp.arange(query.shape[2])
    seen = (apart >= 0) & (apart < (window or query.shape[2])) if causal else jnp.ones_like(apart, bool)
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    return jnp.einsum("bhlm,bhmw->bhlw", weights, value, precision="highest")


def with_gradients(attend, arrays):
    """Result, and gradients for a cotangent that tells every entry apart."""
    towards = np.random.default_rng(1).normal(size=arrays[0].shape).astype(np.float32)

    @jax.jit
    def both(*arrays):
        result, pull = jax.vjp(attend, *arrays)
        return result, *pull(towards)

    return both(*arrays)


def assert_near(actual, expected, tolerance):
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == np.float32
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other)


@pytest.mark.parametrize(
    ("length", "chunk"),  # whole, of every size, and beyond the end
    [(1, 3), (7, 3), (7, 1000), (100, 0), (100, 16)],
)
def test_blocks_change_neither_the_result_nor_its_gradients(length, chunk):
    arrays = heads(length)
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=chunk))
    assert_near(with_gradients(attend, arrays), with_gradients(dense, arrays), 2e-6)


@pytest.mark.parametrize("chunk", [0, 16])  # of 37: whole, and with keys that were only added to fill a block
def test_nor_do_they_where_every_position_is_seen(chunk):
    arrays = heads(37)
    attend = partial(attention.attention, compute=changed(CPU, attention_chunk=chunk))
    assert_near(with_gradients(attend, arrays), with_gradients(partial(dense, causal=False), arrays), 2e-6)


@pytest.mark.parametrize(("window", "chunk"), [(2, 3), (33, 16), (33, 0), (500, 16)])
def test_a_window_hides_what_lies_before_it(window, chunk):
    arrays = heads(100)
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=chunk), window=window)
    assert_near(with_gradients(attend, arrays), with_gradients(partial(dense, window=window), arrays), 2e-6)


def test_only_what_belongs_to_a_block_goes_through_a_branch():
    """A GPU's compiler copies it in every round: of whole queries that made a step cubic in its length."""
    length, chunk = 512, 32
    arrays = heads(length)
    segments = np.sort(np.random.default_rng(0).integers(0, 5, (2, length)), axis=1).astype(np.int32)
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=chunk), segments=segments)

    def of_branches(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "cond":
                yield from (variable.aval.size for variable in equation.outvars)
            for inner in inner_jaxprs(equation):
                yield from of_branches(inner)

    sizes = [*of_branches(jax.jit(partial(with_gradients, attend)).trace(arrays).jaxpr.jaxpr)]
    assert max(sizes) == arrays[0].size * chunk // length


def test_the_planner_tries_blocks_that_fill_a_card_and_on_a_cpu_those_that_fit_its_cache():
    def tried(platform, length):
        blocks = attention_blocks_of(length)
        supported = ("attention_chunk",)
        problem = Problem(
            recipe="text", chip="t4", platform=platform, effective_batch=8, numerics="mixed", supported=supported,
            loss_chunks=(), attention_chunks=blocks,
        )  # fmt: skip
        return ATTENTION_CHUNK.tried(problem, None)

    assert [tried("cuda", length) for length in (512, 2_048, 4_096)] == [[0], [0, 256], [0, 1_024, 256]]
    assert [tried("cpu", length) for length in (512, 2_048, 4_096)] == [[0], [256], [256]]
    assert tried("tpu", 4_096) == [0, 256]


def test_blocks_outside_a_window_are_not_computed():
    def flops(length, window):
        attend = partial(causal_attention, compute=changed(CPU, attention_chunk=32), window=window)
        return dot_flops(jax.jit(attend).trace(*heads(length)).jaxpr)

    assert flops(1024, 64) < 1.1 * 2 * flops(512, 64)
    assert flops(1024, 64) < flops(1024, 0) / 4


SEGMENTS = np.array([[0] * 20 + [1] * 1 + [2] * 50 + [3] * 29, [0] * 100], np.int32)
"""Documents of two rows of 100: several, one of a single position among them, and one alone."""


WINDOWED = {"segments": SEGMENTS, "window": 12}
EVERYTHING = {"segments": SEGMENTS, "window": 30, "cap": 0.5, "scale": 0.7}


@pytest.mark.parametrize(
    ("key_heads", "chunk", "how"),
    [
        (2, 0, {"segments": SEGMENTS}),
        (4, 16, {"segments": SEGMENTS}),
        (1, 37, WINDOWED),
        (2, 16, EVERYTHING),
        (1, 0, EVERYTHING),
        (4, 37, {"cap": 0.5}),
        (1, 16, {"scale": 0.7}),
    ],
)
def test_documents_caps_scales_and_shared_keys(key_heads, chunk, how):
    query, key, value = heads(100, heads=4)
    arrays = [query, key[:, :key_heads], value[:, :key_heads]]
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=chunk), **how)
    assert_near(with_gradients(attend, arrays), with_gradients(partial(dense, **how), arrays), 3e-6)


@pytest.mark.parametrize(("windowed", "chunk"), [(False, 16), (True, 0), (True, 16)])
def test_whether_there_is_a_window_may_be_known_only_at_run_time(windowed, chunk):
    arrays = heads(100)
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=chunk), window=12)
    found = jax.jit(lambda flag: with_gradients(partial(attend, windowed=flag), arrays))(np.array(windowed))
    assert_near(found, with_gradients(partial(dense, window=12 * windowed), arrays), 2e-6)


def test_blocks_that_share_no_document_are_not_computed():
    """The keys and values of the first document are not a number, which any product with them would show."""
    query, key, value = heads(64, batch=1)
    segments = np.repeat(np.array([[0, 1]], np.int32), 32, axis=1)
    key[:, :, :32], value[:, :, :32] = np.nan, np.nan
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=16), segments=segments)
    found = with_gradients(attend, [query, key, value])
    alone = [x[:, :, 32:] for x in (query, key, value)]
    expected = partial(causal_attention, compute=changed(CPU, attention_chunk=16))(*alone)
    np.testing.assert_allclose(found[0][:, :, 32:], expected, rtol=1e-6, atol=1e-6)
    assert all(np.isfinite(x[:, :, 32:]).all() for x in found)


def test_scores_that_would_overflow_do_not():
    query, key, value = heads(40)
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=8))
    actual = with_gradients(attend, [query * 100, key * 100, value])
    assert all(np.isfinite(x).all() for x in actual)
    assert_near(actual[:1], [dense(query * 100, key * 100, value)], 1e-4)


def needed(length, chunk):
    shape = jnp.zeros((1, 2, length, 32))
    attend = partial(causal_attention, compute=changed(CPU, attention_chunk=chunk))
    loss = lambda *arrays: jnp.sum(attend(*arrays) ** 2)  # noqa: E731
    return temporary_bytes(jax.grad(loss, argnums=(0, 1, 2)), shape, shape, shape)


def test_the_bytes_grow_with_the_length_and_not_with_its_square():
    assert needed(8192, 128) < 2.1 * needed(4096, 128)
    assert needed(8192, 0) > 3.5 * needed(4096, 0)
    assert needed(4096, 128) < needed(4096, 0) / 15


@pytest.mark.parametrize("documents", [False, True])
def test_in_a_loop_over_layers_the_bytes_grow_with_the_length_too(documents):
    """What a query sees follows from constants, and must not be computed before the loop, for all blocks at once."""

    def bytes_of(length):
        attend = partial(causal_attention, compute=changed(CPU, attention_chunk=128))
        segments = np.arange(length, dtype=np.int32)[None] // 300 if documents else None

        def loss(x, scales):
            layer = lambda x, scale: x + attend(x * scale, x, x, segments=segments)  # noqa: E731
            return jnp.sum(jax.lax.scan(lambda x, scale: (jax.checkpoint(layer)(x, scale), None), x, scales)[0] ** 2)

        return temporary_bytes(jax.grad(loss), jnp.zeros((1, 4, length, 32)), jnp.zeros(3))

    assert bytes_of(4096) < 2.1 * bytes_of(2048)


def test_query_key_value_result_and_logarithms_are_kept_and_two_blocks_of_scores():
    rows, length, width, chunk = 2, 4096, 32, 128
    kept = rows * length * (4 * width * 4 + 4) + 2 * 4 * rows * chunk**2
    around = 6 * rows * length * width * 4  # scaled and merged inputs; what flows into and out of the backward pass
    assert kept / 2 < needed(length, chunk) < kept + around


GPU, TPU = (
    Compute(platform="gpu", levers=Levers(precision="bfloat16")),
    Compute(platform="tpu", levers=Levers(precision="bfloat16")),
)


@pytest.mark.parametrize(
    ("compute", "length", "width", "expected"),
    [
        (GPU, 1024, 64, "cudnn"),
        (GPU, 77, 128, "cudnn"),
        (changed(GPU, precision="float32"), 1024, 64, None),
        (changed(GPU, attention_chunk=128), 1024, 64, None),
        (GPU, 1024, 12, None),
        (GPU, 1024, 8, "cudnn"),
        (GPU, 1024, 136, None),
        (TPU, 384, 64, "splash"),
        (TPU, 129, 64, None),
        (changed(TPU, precision="float32"), 1024, 64, None),
        (changed(CPU, precision="bfloat16"), 1024, 64, None),
    ],
)
def test_the_chips_own_kernel_is_used_where_it_exists(compute, length, width, expected):
    assert kernel(compute, length=length, width=width) == expected


@pytest.mark.parametrize(("rows", "window"), [(slice(0, 2), 12), (slice(1, 2), 0), (slice(1, 2), 12)])
def test_a_cards_kernel_is_used_where_each_row_is_one_document(monkeypatch, rows, window):
    """Here it is given away by its scale: the kernel is replaced by one whose values are doubled."""

    def of_one_document(query, key, value, length, *, call):
        """What is behind it, its causal attention does not see."""
        by_heads = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]
        return jnp.swapaxes(dense(*by_heads, scale=call.scale), 1, 2).astype(query.dtype)

    def doubled(query, key, value, segments, call):
        assert call.causal
        return 2 * dense(query, key, value, window=call.window, scale=call.scale).astype(query.dtype)

    monkeypatch.setattr(attention, "_has_cudnn", lambda: True)
    monkeypatch.setattr(attention, "_cudnn", doubled)
    monkeypatch.setattr(attention, "_cudnn_document", of_one_document)
    arrays = [x[rows] for x in heads(100, heads=4)]
    segments, several = SEGMENTS[rows], rows.start == 0
    attend = partial(causal_attention, compute=GPU, window=window, segments=segments)
    expected = partial(dense, window=window, segments=segments)
    wanted = with_gradients(lambda *arrays: (1 if several else 2) * expected(*arrays), arrays)
    assert_near(with_gradients(attend, arrays), wanted, 0.02)


def test_no_kernel_of_a_card_knows_caps_or_documents():
    assert kernel(GPU, length=1024, width=64, cap=30.0) is None
    assert kernel(GPU, length=1024, width=64, documents=True) is None
    assert kernel(TPU, length=1024, width=64, cap=30.0, documents=True) == "splash"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"chunk": 1024}, "it goes in blocks of 1,024 positions (--attention-chunk 1024)"),
        ({"precision": "float32"}, "cuDNN's is in bfloat16 here, and products are in float32"),
        ({"width": 12}, "cuDNN's takes heads whose width is a multiple of 8, and they have 12 columns"),
        ({"width": 136}, "cuDNN's takes heads of up to 128 columns, and they have 136"),
    ],
)
def test_a_plan_says_why_attention_is_not_cudnns(changes, words):
    assert without_cudnn(**{"precision": "bfloat16", "chunk": 0, "width": 64} | changes) == words


@pytest.mark.parametrize("how", [{}, {"cap": 2.0, "segments": np.repeat([[0, 1], [2, 2]], [100, 156], axis=1)}])
def test_a_tpus_kernel_computes_the_same_and_knows_documents_and_caps(how):
    arrays = [jnp.asarray(x) for x in heads(256, width=64)]
    kernel_how = {"segments": None, "call": Call(64**-0.5), **how}
    attend = partial(attention._splash, interpret=True, **kernel_how)
    assert_near(with_gradients(attend, arrays), with_gradients(partial(dense, **how), arrays), 1e-4)


def test_for_a_tpu_the_step_holds_the_kernel_and_no_scores():
    shape = jax.ShapeDtypeStruct((2, 4, 512, 64), jnp.float32)

    def lowered(compute):
        loss = lambda *arrays: jnp.sum(causal_attention(*arrays, compute=compute))  # noqa: E731
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(shape, shape, shape)
        return traced.lower(lowering_platforms=("tpu",)).as_text()

    assert "tpu_custom_call" in lowered(TPU)
    assert "x512x512xf32" not in lowered(TPU)
    assert "tpu_custom_call" not in lowered(changed(TPU, precision="float32"))


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_what_is_traced_where_cudnn_is_not_installed_holds_no_scores_either(precision, monkeypatch):
    monkeypatch.setattr(attention, "_has_cudnn", lambda: False)
    shape = jax.ShapeDtypeStruct((1, 2, 2048, 64), jnp.float32)
    compute = changed(GPU, precision=precision)
    loss = lambda *arrays: jnp.sum(causal_attention(*arrays, compute=compute))  # noqa: E731
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(shape, shape, shape)
    scores = 4 * 2 * 2048**2
    assert (liveness.temporary_bytes(traced.jaxpr) > scores) == (precision == "float32")
