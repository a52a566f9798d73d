"""Dots: float32 ones are exact on every chip, 16-bit ones are near, keep half the bytes, and stay what they are."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.levers.precision import Form, batched_dot, batched_dot_rows, dot, dot_columns, dot_rows

FORMS = {
    "dot": (dot, (5, 12, 24), (24, 40), lambda a, b: a @ b),
    "dot_rows": (dot_rows, (5, 12, 24), (40, 24), lambda a, b: a @ b.T),
    "dot_columns": (dot_columns, (12, 24), (12, 5, 40), lambda a, b: np.tensordot(a, b, axes=(0, 0))),
    "batched_dot": (batched_dot, (5, 12, 24), (5, 24, 40), lambda a, b: a @ b),
    "batched_dot_rows": (batched_dot_rows, (5, 12, 24), (5, 40, 24), lambda a, b: a @ np.swapaxes(b, 1, 2)),
}


@pytest.fixture(params=FORMS)
def form(request):
    function, left, right, reference = FORMS[request.param]
    random = np.random.default_rng(0)
    return (
        function,
        random.normal(size=left).astype(np.float32),
        random.normal(size=right).astype(np.float32),
        reference,
    )


def with_gradients(function, a, b, *, precision, platform="cpu"):
    """Result, and the gradients for a cotangent that tells every entry apart."""
    product, pull = jax.vjp(jax.jit(partial(function, compute=Form(precision, platform))), a, b)
    towards = np.random.default_rng(1).normal(size=product.shape).astype(np.float32)
    return (product, *jax.jit(pull)(towards)), towards


def expected_from(reference, a, b, towards):
    """In float64 NumPy. The product is bilinear, so its gradients come from JAX's own dot in float32 highest."""

    def product(a, b):
        if a.ndim == 2 and b.ndim == 3:
            return jnp.tensordot(a, b, axes=(0, 0))
        return a @ (jnp.swapaxes(b, -1, -2) if b.shape[-1] == a.shape[-1] != b.shape[-2] else b)

    with jax.default_matmul_precision("highest"):
        _, pull = jax.vjp(product, a, b)
        return reference(np.float64(a), np.float64(b)), *pull(towards)


def relative(one, other):
    return float(np.linalg.norm(np.float64(one) - np.float64(other)) / np.linalg.norm(np.float64(other)))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_float32_dots_and_their_gradients_are_exact(form, platform):
    function, a, b, reference = form
    actual, towards = with_gradients(function, a, b, precision="float32", platform=platform)
    for one, other in zip(actual, expected_from(reference, a, b, towards), strict=True):
        assert one.dtype == np.float32
        assert one.shape == other.shape
        assert relative(one, other) < 1e-6


@pytest.mark.parametrize(
    ("platform", "precision", "bits"), [("cpu", "bfloat16", 8), ("tpu", "bfloat16", 8), ("cpu", "float16", 11)]
)
def test_rounded_dots_and_their_gradients_are_near_and_come_out_in_float32(form, platform, precision, bits):
    function, a, b, reference = form
    actual, towards = with_gradients(function, a, b, precision=precision, platform=platform)
    for one, other in zip(actual, expected_from(reference, a, b, towards), strict=True):
        assert one.dtype == np.float32
        assert 1e-5 < relative(one, other) < 1.6 * 2.0**-bits  # rounding of the mantissa shows, and no more than that


def lowered_dots(function, a, b, *, precision, platform):
    def step(a, b):
        product, pull = jax.vjp(partial(function, compute=Form(precision, platform)), a, b)
        return pull(product)

    for_platform = {"gpu": "cuda"}.get(platform, platform)
    text = jax.jit(step).trace(a, b).lower(lowering_platforms=(for_platform,)).as_text()
    return re.findall(r"stablehlo\.dot_general[^\n]*", text)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
def test_a_float32_dot_asks_every_backend_for_float32_products(form, platform):
    """The default would be bfloat16 on a TPU and TF32 on a recent NVIDIA card, in the backward pass too."""
    function, a, b, _ = form
    dots = lowered_dots(function, a, b, precision="float32", platform=platform)
    assert len(dots) == 3
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in dots)
    assert not any("tf32" in line for line in dots)


@pytest.mark.parametrize(
    ("platform", "precision", "operand"),
    [
        ("cpu", "bfloat16", "xbf16>"),
        ("tpu", "bfloat16", "xbf16>"),
        ("gpu", "bfloat16", "xbf16>"),
        ("gpu", "float16", "xf16>"),
    ],
)
def test_a_rounded_dot_multiplies_what_it_says_and_sums_float32(form, platform, precision, operand):
    function, a, b, _ = form
    dots = lowered_dots(function, a, b, precision=precision, platform=platform)
    assert len(dots) == 3
    for line in dots:
        assert types_of(line, operand) == (2, "xf32>")


def types_of(line, operand="xf32>"):
    """How many operands are of that type, and the type of the result."""
    operands, result = re.search(r": \((.*)\) -> (tensor<[^>]*>)", line).groups()
    return operands.count(operand), result[result.rindex("x") :]


@pytest.mark.parametrize("name", ["dot", "dot_rows"])
def test_the_compiled_bfloat16_dots_read_bfloat16(name):
    """XLA on a CPU may convert both operands back to float32 and multiply those: slower than never converting."""
    if not bfloat16_in_hardware():
        pytest.skip("this processor has no bfloat16 dots, so XLA is right to convert")
    function, _, _, _ = FORMS[name]
    a = jnp.zeros((512, 256))
    b = jnp.zeros((256, 384) if name == "dot" else (384, 256))

    def step(a, b):
        product, pull = jax.vjp(partial(function, compute=Form("bfloat16", "cpu")), a, b)
        return pull(product)

    text = jax.jit(step).lower(a, b).compile().as_text()
    up = [line for line in text.splitlines() if re.search(r"= f32\[[0-9,]+\]\S* convert\(", line)]
    assert not up, up


def bfloat16_in_hardware():
    try:
        with open("/proc/cpuinfo") as file:
            return "avx512_bf16" in file.read()
    except OSError:
        return False


def test_bfloat16_keeps_half_the_bytes_for_the_backward_pass():
    """What a dot keeps is its operand; of a long chain that is most of the temporaries."""
    kept = {p: kept_bytes(dot, (4096, 64), (64, 64), p) for p in ("float32", "bfloat16")}
    assert kept["float32"] == 4096 * 64 * 4 + 64 * 64 * 4
    assert kept["bfloat16"] == 4096 * 64 * 2 + 64 * 64 * 4  # the weight stays: it is alive anyway
    kept = {p: kept_bytes(batched_dot, (8, 64, 64), (8, 64, 64), p) for p in ("float32", "bfloat16")}
    assert kept["bfloat16"] * 2 == kept["float32"] == 2 * 8 * 64 * 64 * 4


def kept_bytes(function, left, right, precision):
    def residuals(a, b):
        _, pull = jax.vjp(partial(function, compute=Form(precision, "cpu")), a, b)
        return jax.tree.leaves(pull)

    specs = (jax.ShapeDtypeStruct(left, jnp.float32), jax.ShapeDtypeStruct(right, jnp.float32))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.eval_shape(residuals, *specs))
