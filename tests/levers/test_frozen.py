"""Frozen weights in fewer bits: how far they are from what they were, what they weigh, and who gets a gradient."""

from functools import partial
from statistics import NormalDist

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.levers.frozen import (
    GROUP,
    NF4_LEVELS,
    TILE,
    Packed,
    frozen_dot,
    frozen_dot_rows,
    over_tiles,
    packed,
    stored,
    widened,
)
from plimsoll.levers.precision import Form, dot
from plimsoll.training.program import tree_bytes

LEVELS = np.array(NF4_LEVELS)


def kernel(rows=256, cols=48, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, cols), np.float32)


def test_nf4_is_zero_and_quantiles_in_equal_steps_of_probability():
    """Dettmers et al. 2023, equation 4: the outermost probability is the mean of 1 - 1/30 and 1 - 1/32."""
    outermost, normal = (2 - 1 / 30 - 1 / 32) / 2, NormalDist()
    above = [normal.inv_cdf(p) for p in np.linspace(outermost, 0.5, 9)[:-1]]
    below = [-normal.inv_cdf(p) for p in np.linspace(outermost, 0.5, 8)[:-1]]
    np.testing.assert_allclose(LEVELS, np.array(sorted([*above, 0.0, *below])) / above[0], atol=2e-7)


there_and_back = jax.jit(lambda whole, bits: widened(packed(whole, bits)), static_argnums=1)


@settings(deadline=None, max_examples=examples(30))
@given(
    arrays.arrays(
        np.float32,
        st.sampled_from([(1, 1, 1), (1, 63, 5), (2, 64, 1), (2, 129, 3)]),  # each is compiled: a few, around a group
        elements=st.floats(-1e4, 1e4, width=32),
    ),
    st.sampled_from([8, 4]),
)
def test_a_weight_comes_back_within_half_a_step_of_its_groups_largest(whole, bits):
    back = np.asarray(there_and_back(whole, bits))
    assert back.shape == whole.shape
    half_a_step = 0.5 / 127 if bits == 8 else np.diff(LEVELS).max() / 2
    for start in range(0, whole.shape[1], GROUP):
        group = whole[:, start : start + GROUP]
        largest = np.abs(group).max(axis=1, keepdims=True)
        # The scale is a bfloat16: up to 2^-8 off, which shows where a value is as large as the scale.
        bound = (half_a_step * 1.01 + 2.0**-8) * largest + 1e-30
        assert (np.abs(back[:, start : start + GROUP] - group) <= bound).all()


@pytest.mark.parametrize(("bits", "bytes_per_weight"), [(16, 2.0), (8, 1 + 2 / 64), (4, 0.5 + 2 / 64)])
def test_frozen_weights_take_the_bytes_that_are_claimed(bits, bytes_per_weight):
    tree = {"blocks": {"kernel": jnp.asarray(kernel(512, 64)), "bias": jnp.zeros(64)}}
    kept = stored(tree, bits)
    assert tree_bytes(kept["blocks"]["kernel"]) == bytes_per_weight * 512 * 64
    assert kept["blocks"]["bias"].dtype == jnp.float32


@pytest.mark.parametrize(("bits", "precision"), [(8, "float32"), (4, "bfloat16")])
def test_a_frozen_dot_is_the_dot_with_what_the_codes_mean(bits, precision):
    whole, x = packed(jnp.asarray(kernel()), bits), jnp.asarray(kernel(32, 256, seed=1))
    form = Form(precision, "cpu")
    value, pull = jax.vjp(lambda x: frozen_dot(x, whole, form), x)
    plain, pull_plain = jax.vjp(lambda x: dot(x, widened(whole), form), x)
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_array_equal(pull(value)[0], pull_plain(plain)[0])


def test_no_activation_is_kept_for_a_gradient_that_nobody_wants():
    form = Form("float32", "cpu")
    x = jax.ShapeDtypeStruct((4096, 256), jnp.float32)

    def temporaries(product, kernel, learned):
        def loss(x, kernels):
            for one in kernels:
                x = product(x, one, form)
            return jnp.sum(x * x)

        gradient = jax.grad(loss, argnums=(0, 1) if learned else 0)
        return jax.jit(gradient).lower(x, [kernel] * 6).compile().memory_analysis().temp_size_in_bytes

    whole = jnp.asarray(kernel(256, 256))
    assert temporaries(frozen_dot, packed(whole, 8), learned=False) < temporaries(dot, whole, learned=True) / 2


def test_codes_of_eight_bits_by_hand():
    """Of 65 rows the first 64 share a scale, 4, and the last has its own, 2; what fills up is zero."""
    kernel = np.zeros((65, 2), np.float32)
    kernel[[0, 1, 2, 63, 64], 0] = 4, -4, 1, 4 / 127, 2
    found = jax.jit(packed, static_argnums=1)(jnp.asarray(kernel), 8)
    assert (found.codes.shape, found.scales.shape, found.rows, found.shape) == ((128, 2), (2, 2), 65, (65, 2))
    assert found.codes[:, 0].tolist() == [127, -127, 32, *[0] * 60, 1, 127, *[0] * 63]
    assert found.scales.tolist() == [[4.0, 0.0], [2.0, 0.0]]
    assert not found.codes[:, 1].any()
    np.testing.assert_allclose(jax.jit(widened)(found)[[0, 1, 2, 64], 0], [4, -4, 4 * 32 / 127, 2], rtol=1e-6)


def test_codes_of_four_bits_are_two_to_a_byte_the_first_row_below():
    """NF4 has -1 as 0, zero as 7 and 1 as 15."""
    kernel = np.zeros((64, 1), np.float32)
    kernel[[0, 1, 2], 0] = 8, -8, 8
    found = jax.jit(packed, static_argnums=1)(jnp.asarray(kernel), 4)
    assert (found.codes.shape, found.codes.dtype) == ((32, 1), jnp.uint8)
    assert found.codes[:, 0].tolist() == [15 + 16 * 0, 15 + 16 * 7, *[7 + 16 * 7] * 30]
    np.testing.assert_array_equal(jax.jit(widened)(found)[:, 0], kernel[:, 0])


@pytest.mark.parametrize(
    ("path", "shape", "bits", "kept"),
    [
        (("kernel",), (64, 64), 32, "float32"), (("kernel",), (64, 64), 16, "bfloat16"),
        (("kernel",), (64, 64), 8, 8), (("kernel",), (64, 64), 4, 4), (("kernel",), (63, 65), 8, "float32"),
        (("vector",), (4_096,), 8, "bfloat16"), (("embedding",), (64, 64), 4, "bfloat16"),
        (("norm", "bias"), (64, 64), 4, "float32"),
    ],
)  # fmt: skip
def test_what_a_leaf_is_stored_as(path, shape, bits, kept):
    tree = jnp.ones(shape)
    for name in reversed(path):
        tree = {name: tree}
    (leaf,) = jax.tree.leaves(stored(tree, bits), is_leaf=lambda leaf: isinstance(leaf, Packed))
    assert (leaf.bits if isinstance(leaf, Packed) else leaf.dtype.name) == kept
    integers = {"kernel": jnp.ones((64, 64), jnp.int32)}
    assert stored(integers, 8)["kernel"].dtype == jnp.int32


def test_codes_are_chosen_by_the_exact_largest_of_a_group():
    """As bitsandbytes does: 0.2 is nearer to 0.2461 than to 0.1609, and of a scale that was rounded up, not."""
    bound, largest = np.float32((NF4_LEVELS[9] + NF4_LEVELS[10]) / 2), np.float32(1 + 2.0**-8 + 2.0**-12)
    kernel = np.zeros((64, 2), np.float32)
    kernel[[0, 1], 0] = largest, largest * bound * np.float32(1 + 1e-6)
    found = jax.jit(packed, static_argnums=1)(jnp.asarray(kernel), 4)
    assert found.codes[0].tolist() == [15 + 16 * 10, 7 + 16 * 7]
    assert float(found.scales[0, 0]) > largest * (1 + 1e-6)


@pytest.mark.parametrize(
    ("bits", "axis", "tile"), [(16, -2, 64 * 64), (8, -1, 64 * 64), (4, -2, 64 * 150), (4, -1, 64 * 150)]
)
def test_tiles_of_a_kernel_make_the_product_of_the_whole(bits, axis, tile):
    whole, x = jnp.asarray(kernel(320, 192)), jnp.asarray(kernel(8, 320 if axis == -2 else 192, seed=1))
    held = whole.astype(jnp.bfloat16) if bits == 16 else packed(whole, bits)
    form = Form("float32", "cpu")
    found = jax.jit(partial(over_tiles, axis=axis, form=form, tile=tile))(x, held)
    expected = jax.jit(partial(over_tiles, axis=axis, form=form, tile=320 * 192))(x, held)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("product", [frozen_dot, frozen_dot_rows])
def test_a_large_kernel_is_widened_a_tile_at_a_time(product):
    """Of 2^25 weights in NF4, a copy is 128 MiB; a tile is 32."""
    inner, cols = 2**11, 2**14
    shape = (inner, cols) if product is frozen_dot else (cols, inner)
    held = jax.eval_shape(partial(packed, bits=4), jax.ShapeDtypeStruct(shape, jnp.float32))
    x = jax.ShapeDtypeStruct((64, inner), jnp.float32)

    def gradient(x, held):
        return jax.grad(lambda x: jnp.sum(jnp.sin(product(x, held, compute=Form("float32", "cpu")))))(x)

    temporaries = jax.jit(gradient).lower(x, held).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < 4 * TILE + 4 * 4 * 64 * cols
    assert temporaries < 2 * inner * cols


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_table_in_bfloat16_is_not_copied_for_a_loop_that_reads_it(precision):
    """Of 2^22 numbers a copy is 8 MiB; a chunk of logits is a quarter of one."""
    rows, inner = 2**14, 2**8
    table, x = jax.ShapeDtypeStruct((rows, inner), jnp.bfloat16), jax.ShapeDtypeStruct((4, 32, inner), jnp.float32)
    form = Form(precision, "cpu")

    def chunks(x, table):
        return jax.lax.map(lambda x: jnp.sum(over_tiles(x, table, -1, form, tile=2**18), axis=1), x)

    temporaries = jax.jit(chunks).lower(x, table).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < 2 * rows * inner
