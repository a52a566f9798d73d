"""Codes and scales: how near they are, what they never do, and what they weigh."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plimsoll.levers import eight_bit
from plimsoll.levers.eight_bit import (
    BLOCK,
    MEAN_STEPS,
    ROOT_STEPS,
    decode_mean,
    decode_root,
    encode_mean,
    encode_root,
)

MAGNITUDES = st.floats(min_value=0, max_value=2**100, width=32, allow_subnormal=False)
"""From nothing to what a float32 can still square."""
BLOCKS = arrays(np.float32, (2, BLOCK), elements=MAGNITUDES)
SIGNS = arrays(np.float32, (2, BLOCK), elements=st.sampled_from([-1.0, 1.0]))
RANDOM = arrays(np.uint32, (2, BLOCK), elements=st.integers(0, 2**32 - 1))
SMALLEST = 1e-30
"""Scales below it are it."""


def halves(values, scales):
    """The square root of value over scale: the line on which codes are evenly spaced."""
    scales = np.where(scales == 0, 1, scales)[:, None].astype(np.float64)
    return np.sqrt(np.abs(values.astype(np.float64)) / scales)


@given(magnitudes=BLOCKS, signs=SIGNS)
@settings(deadline=None)
def test_a_mean_comes_back_within_half_a_code(magnitudes, signs):
    means = magnitudes * signs
    codes, scales = map(np.asarray, encode_mean(jnp.asarray(means)))
    back = np.asarray(decode_mean(jnp.asarray(codes), jnp.asarray(scales)))
    assert np.abs(halves(back, scales) - halves(means, scales)).max() <= 0.5001 / MEAN_STEPS
    assert (np.sign(back) * np.sign(means) >= 0).all()


@given(roots=BLOCKS, random=RANDOM)
@settings(deadline=None)
def test_a_root_comes_back_within_a_code_and_is_zero_only_if_it_was(roots, random):
    codes, scales = map(np.asarray, encode_root(jnp.asarray(roots), jnp.asarray(random)))
    back = np.asarray(decode_root(jnp.asarray(codes), jnp.asarray(scales)))
    assert np.abs(halves(back, scales) - halves(roots, scales)).max() <= 1.0001 / ROOT_STEPS
    np.testing.assert_array_equal(codes == 0, roots == 0)
    assert (back[roots > 0] > 0).all()


@given(magnitudes=BLOCKS, random=RANDOM)
@settings(deadline=None)
def test_scales_are_each_block_s_largest_and_come_back_exactly(magnitudes, random):
    largest = np.where(magnitudes.max(1) == 0, 0, np.maximum(magnitudes.max(1), np.float32(SMALLEST)))
    for codes, scales, decode in (
        (*encode_mean(jnp.asarray(magnitudes)), decode_mean),
        (*encode_root(jnp.asarray(magnitudes), jnp.asarray(random)), decode_root),
    ):
        np.testing.assert_array_equal(scales, largest)
        at_scale = np.asarray(decode(codes, scales)).max(1)[largest > SMALLEST]
        np.testing.assert_allclose(at_scale, largest[largest > SMALLEST], rtol=1e-6 if decode is decode_mean else 0.008)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_in_its_whole_block_and_in_no_other(bad):
    values = jnp.ones((2, BLOCK)).at[0, 5].set(bad)
    for back in (
        decode_mean(*encode_mean(values)),
        decode_root(*encode_root(jnp.abs(values), jnp.zeros((2, BLOCK), jnp.uint32))),
    ):
        assert not np.isfinite(back[0, 5])
        assert np.isfinite(back[1]).all()


def block(*values):
    return jnp.asarray([[*values, *[0.0] * (64 - len(values))]], jnp.float32)


def test_codes_of_a_mean_by_hand():
    """128 and the root of the share of the largest, in 127 steps; halves go to the even one."""
    codes, scales = eight_bit.encode_mean(2 * block(1, -1, (64 / 127) ** 2, -((3 / 127) ** 2), 0.25, 0))
    assert scales.tolist() == [2.0]
    assert codes[0, :6].tolist() == [255, 1, 192, 125, 192, 128]
    values = eight_bit.decode_mean(codes, scales)[0, :4]
    np.testing.assert_allclose(values, [2, -2, 2 * (64 / 127) ** 2, -2 * (3 / 127) ** 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("low", "codes"), [(0, [254, 100, 1, 1, 0]), (0x8000, [255, 100, 1, 1, 0]), (0xFFFF, [255, 101, 2, 1, 0])]
)
def test_codes_of_a_root_go_up_or_down_by_the_low_bits_and_only_zero_has_none(low, codes):
    """Shares (code / 255)^2 of the largest of 3, here of 255, 100.25, 1.25, almost nothing, and nothing."""
    shares = [255, 100.25, 1.25, 1e-9, 0]
    random = jnp.full((1, 64), 0x7FFF0000 + low, jnp.uint32)
    found, scales = eight_bit.encode_root(3 * block(*((code / 255) ** 2 for code in shares)), random)
    assert scales.tolist() == [3.0]
    assert found[0, :5].tolist() == codes
    np.testing.assert_allclose(
        eight_bit.decode_root(found, scales)[0, :5], [3 * (code / 255) ** 2 for code in codes], rtol=1e-6
    )
