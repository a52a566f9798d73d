"""Weights that were given become the state's own, and nothing is compiled for it."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.levers.ema import Average
from plimsoll.training.initial_weights import copied, twice_at_first, with_initial


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int8"])
@pytest.mark.parametrize("of", [np.asarray, jax.device_put])
def test_a_copy_shares_no_byte_and_compiles_nothing(of, dtype, caplog):
    numbers = np.arange(3 * 1024, dtype=dtype).reshape(3, 1024)
    leaf = of(numbers.copy())
    with jax.log_compiles(), caplog.at_level(logging.DEBUG):
        copy = copied(leaf, jax.device_put(0).sharding)
    assert not [record.message for record in caplog.records if "ompil" in record.message]
    assert copy.dtype == dtype
    if isinstance(leaf, np.ndarray):
        leaf[:] = 0
    else:
        assert copy.unsafe_buffer_pointer() != leaf.unsafe_buffer_pointer()
        leaf.delete()
    np.testing.assert_array_equal(np.asarray(copy), numbers)


def state():
    drawn = {"kept": jax.device_put(np.ones(4, np.float32)), "other": jax.device_put(np.zeros(4, np.float32))}
    return {"params": {"trainable": drawn, "frozen": {}}}


def test_what_is_not_given_stays_and_what_is_replaced_is_given_back():
    begun, given = state(), np.full(4, 2.0, np.float32)
    begun["ema"] = {name: jax.device_put(np.zeros(4, np.float32)) for name in begun["params"]["trainable"]}

    def begin(params):
        return params | {"trainable": params["trainable"] | {"other": jax.device_put(given)}}

    found = with_initial(begun, begin, Average(0.9, 32))
    assert found["params"]["trainable"]["kept"] is begun["params"]["trainable"]["kept"]
    assert all(leaf.is_deleted() for leaf in begun["ema"].values())  # two averages are never in memory
    np.testing.assert_array_equal(np.asarray(found["params"]["trainable"]["other"]), given)
    for name, leaf in found["ema"].items():
        own = found["params"]["trainable"][name]
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(own))
        assert leaf.unsafe_buffer_pointer() != own.unsafe_buffer_pointer()  # both are donated


def test_where_nothing_is_given_nothing_changes():
    assert with_initial(state(), lambda params: params, None) is None


def test_weights_in_16_bits_are_given_as_numbers_and_kept_as_bits():
    drawn = {name: jax.device_put(np.arange(64, dtype=np.uint16)) for name in ("kept", "bfloat16", "float32")}
    own = dict(drawn)
    given = np.linspace(-2, 2, 64, dtype=np.float32)

    def begin(params):
        weights = params["trainable"]
        assert {leaf.dtype for leaf in weights.values()} == {np.dtype(jnp.bfloat16)}
        numbers = {"bfloat16": jax.device_put(given.astype(jnp.bfloat16)), "float32": given}
        return params | {"trainable": weights | numbers}

    found = with_initial({"params": {"trainable": drawn, "frozen": {}}}, begin, None)
    weights = found["params"]["trainable"]
    np.testing.assert_array_equal(np.asarray(weights["kept"]), np.arange(64))
    for name in ("bfloat16", "float32"):
        np.testing.assert_array_equal(np.asarray(weights[name]), given.astype(jnp.bfloat16).view(np.uint16))
        assert own[name].is_deleted()


def test_twice_at_first_are_the_largest_array_and_what_is_learned_in_16_bits():
    shapes = {"a": jax.ShapeDtypeStruct((100,), jnp.uint16), "b": jax.ShapeDtypeStruct((30,), jnp.float32)}
    assert twice_at_first({"trainable": shapes, "frozen": {}}) == 200 + 200
    assert twice_at_first({"trainable": {}, "frozen": shapes}) == 200
