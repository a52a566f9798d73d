"""24 bits are split and joined exactly; 16 are rounded with the right mean, and the same way after a restart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plimsoll.levers.weight_bits import (
    as_bfloat16,
    as_bits,
    join,
    learned,
    opened,
    random_bits,
    random_key,
    read,
    readable,
    round_at_random,
    rows,
    split,
    widen,
)

WEIGHTS = arrays(
    np.float32, 32, elements=st.floats(width=32, allow_subnormal=False, min_value=-(2.0**127), max_value=2.0**127)
)


@given(weights=WEIGHTS)
@settings(deadline=None)
def test_24_bits_are_the_weight_to_2_to_the_minus_16_and_the_nearest_bfloat16(weights):
    high, rest = split(jnp.asarray(weights))
    error = np.abs(np.asarray(join(high, rest), np.float64) - weights)
    assert (error <= 2.0**-16 * np.abs(weights)).all()
    seen = np.asarray(as_bfloat16(high), np.float64)
    assert (np.abs(seen - weights) <= (2.0**-8 + 2.0**-16) * np.abs(weights)).all()


@given(high=arrays(np.uint16, 32), rest=arrays(np.int8, 32))
@settings(deadline=None)
def test_join_then_split_gives_the_same_bits(high, rest):
    """For numbers: what is joined to infinity or beyond is none."""
    joined = np.asarray(join(jnp.asarray(high), jnp.asarray(rest)))
    back = split(jnp.asarray(joined))
    sure = np.isfinite(joined) & ((high & 0x7FFF) > 0)  # below zero's own bits lies the other sign
    np.testing.assert_array_equal(np.asarray(back[0])[sure], high[sure])
    np.testing.assert_array_equal(np.asarray(back[1])[sure], rest[sure])


@given(weights=WEIGHTS, random=arrays(np.uint32, 32))
@settings(deadline=None)
def test_16_bits_are_one_of_the_two_neighbours_and_exact_ones_stay(weights, random):
    high = round_at_random(jnp.asarray(weights), jnp.asarray(random))
    back = np.asarray(widen(high), np.float64)
    assert (np.abs(back - weights) < 2.0**-7 * np.abs(weights) + (weights == 0)).all()
    again = round_at_random(widen(high), jnp.asarray(random))
    np.testing.assert_array_equal(again, high)


def test_random_bits_differ_by_element_step_and_leaf_and_each_bit_is_even():
    elements = jnp.arange(2**16, dtype=jnp.uint32)
    draws = [np.asarray(random_bits(random_key(jnp.int32(s), n), elements)) for s in range(3) for n in range(3)]
    for at, one in enumerate(draws):
        shares = [((one >> bit) & 1).mean() for bit in range(32)]
        assert np.abs(np.array(shares) - 0.5).max() < 5 * 0.5 / 2**8
        for other in draws[:at]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / 2**8
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 5 / 2**8
    np.testing.assert_array_equal(draws[4], random_bits(random_key(jnp.int32(1), 1), elements))


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000])
def test_not_a_number_stays_one(bits):
    weight = jnp.asarray(np.array([bits], np.uint32).view(np.float32))
    assert np.isnan(join(*split(weight))).all()
    assert np.isnan(widen(round_at_random(weight, jnp.full(1, 0xFFFF, jnp.uint32)))).all()


def test_a_table_read_in_parts_has_the_gradient_of_one_that_is_read_whole():
    """Rows and all of it: the values are bfloat16 either way, and the parts of the gradient are summed in float32."""
    table = jnp.asarray(np.random.default_rng(3).normal(size=(6, 32)), jnp.float32)
    stored = {"table": as_bits(table.astype(jnp.bfloat16)), "scale": jnp.ones(32)}
    ids = jnp.array([[0, 5, 5], [2, 2, 2]])

    def loss(weights):
        taken, whole = rows(weights["table"], ids), opened(weights["table"])
        assert taken.dtype == whole.dtype == jnp.bfloat16
        taken, whole = (x.astype(jnp.float32) for x in (taken, whole))
        return jnp.sum(jnp.sin(taken * weights["scale"])) + jnp.sum(whole**3)

    def in_parts(learnt):
        return loss(read(learnt, stored, ("table",)))

    value, gradient = jax.value_and_grad(in_parts)(learned(stored, ("table",)))
    expected, rounded = jax.value_and_grad(loss)(readable(stored))
    assert value == expected
    assert gradient["table"].dtype == jnp.float32
    exact = jax.grad(loss_of_float32)(as_bfloat16(stored["table"]).astype(jnp.float32), ids)
    np.testing.assert_allclose(gradient["table"], exact, rtol=2**-7, atol=2**-8)
    np.testing.assert_array_equal(gradient["scale"], rounded["scale"])


def loss_of_float32(table, ids):
    return jnp.sum(jnp.sin(table[ids])) + jnp.sum(table**3)


def lowbias32(x):
    """As its author wrote it, in Python's whole numbers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def test_random_bits_are_those_of_the_published_hash():
    """They are part of what a seed promises: a run that is continued by a later version rounds alike."""
    key = random_key(jnp.int32(17), 3)
    golden = 0x9E3779B9
    assert int(key) == lowbias32(lowbias32((17 + golden) & 0xFFFFFFFF) ^ (3 * golden & 0xFFFFFFFF))
    elements = [0, 1, 2, 63, 64, 2**31, 2**32 - 1]
    found = random_bits(key, jnp.asarray(np.array(elements, np.uint32)))
    assert found.tolist() == [lowbias32(element ^ int(key)) for element in elements]


@pytest.mark.parametrize(
    ("bits", "high", "rest"),
    [
        (0x3F800000, 0x3F80, 0),
        (0x3F800100, 0x3F80, 1),
        (0x3F80007F, 0x3F80, 0),
        (0x3F800080, 0x3F80, 0),  # half of a 256th: to the even one
        (0x3F800180, 0x3F80, 2),
        (0x3F800081, 0x3F80, 1),
        (0x3F807F00, 0x3F80, 127),
        (0x3F808000, 0x3F81, -128),  # half of a step: up
        (0x3F80FF00, 0x3F81, -1),
    ],
)
def test_a_weight_is_split_into_the_nearest_bfloat16_and_256ths_of_its_step(bits, high, rest):
    found = split(jnp.asarray(np.array([bits], np.uint32).view(np.float32)))
    assert (int(found[0][0]), int(found[1][0])) == (high, rest)


@pytest.mark.parametrize(
    ("low", "random", "high"),
    [
        (0x4000, 0xBFFF, 0x3F80),
        (0x4000, 0xC000, 0x3F81),
        (0x4000, 0xABC0000, 0x3F80),
        (0, 0xFFFF, 0x3F80),
        (1, 0xFFFF, 0x3F81),
    ],
)
def test_a_weight_is_rounded_up_as_often_as_it_is_near(low, random, high):
    """By the low 16 bits of what is random: a quarter of a step above, in a quarter of all cases."""
    weight = jnp.asarray(np.array([0x3F800000 + low], np.uint32).view(np.float32))
    assert int(round_at_random(weight, jnp.asarray(np.array([random], np.uint32)))[0]) == high
