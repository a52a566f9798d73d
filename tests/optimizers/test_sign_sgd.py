"""Rows that were read are updated once, the others not at all, and no temporary is of the table's size."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.optimizers.sign_sgd import RowRule

ROWS, WIDTH = 7, 5


def after(table, rows, gradient, *, rate=1e-2, decay=0.1, taken=True, step=0):
    given = {"puzzles": table}, {"puzzles": rows}, {"puzzles": gradient}
    return np.asarray(rule_of(rate, decay)(*given, step=jnp.int32(step), taken=jnp.asarray(taken))["puzzles"])


@cache
def rule_of(rate, decay):
    return jax.jit(RowRule(optax.constant_schedule(rate), decay).after)


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@given(st.lists(st.integers(0, ROWS - 1), min_size=6, max_size=6))
def test_rows_that_were_read_move_by_the_sign_of_their_sum_and_others_stay(read):
    table, gradient, rows = drawn(0, ROWS, WIDTH), drawn(1, len(read), WIDTH), np.array(read, np.int32)
    expected = np.float64(table)
    for row in set(read):
        expected[row] = expected[row] * (1 - 1e-3) - 1e-2 * np.sign(np.float64(gradient[rows == row]).sum(0))
    actual = after(table, rows, gradient)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    untouched = [row for row in range(ROWS) if row not in read]
    np.testing.assert_array_equal(actual[untouched], table[untouched])


def test_gradients_that_cancel_leave_the_decay_alone():
    table, gradient = drawn(0, ROWS, WIDTH), drawn(1, 1, WIDTH)
    both = np.concatenate([gradient, -gradient])
    np.testing.assert_allclose(after(table, np.int32([3, 3]), both)[3], table[3] * (1 - 1e-3), rtol=1e-6)


def test_a_step_that_is_not_taken_changes_no_bit():
    table = drawn(0, ROWS, WIDTH)
    rows, gradient = np.int32([1, 2, 1]), np.float32([[np.inf] * WIDTH, [np.nan] * WIDTH, [-np.inf] * WIDTH])
    np.testing.assert_array_equal(after(table, rows, gradient, taken=False), table)


@pytest.mark.parametrize("variant", ["attention", "mlp"])
def test_golden_one_update(shared, variant):
    with np.load(shared / "golden" / f"trm_{variant}.npz", allow_pickle=False) as file:
        golden = dict(file)
    rate, decay = (float(x) for x in golden["signsgd/hyper"])
    rows, gradient = golden["step0/grad_puzzle_ids"], golden["step0/grad_puzzle_rows"]
    assert len(set(rows.tolist())) < len(rows)  # some are read twice
    actual = after(golden["buffer/puzzle_emb"], rows, gradient, rate=rate, decay=decay)
    expected = golden["signsgd/after1"]
    assert np.linalg.norm(actual - expected) <= 1e-5 * np.linalg.norm(expected)


def test_no_temporary_is_of_the_tables_size():
    """By shapes alone: 1,000,000 rows are 1.9 GiB, and nothing of it is allocated."""
    rule, rows = RowRule(optax.constant_schedule(1e-4), 1.0), 1_000_000

    def apply(table, read, gradient):
        return rule.after({"t": table}, {"t": read}, {"t": gradient}, step=jnp.int32(5), taken=jnp.asarray(True))["t"]

    shapes = [((rows, 512), "float32"), ((768,), "int32"), ((768, 512), "float32")]
    given = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    stats = jax.jit(apply, donate_argnums=0).lower(*given).compile().memory_analysis()
    assert stats.alias_size_in_bytes == rows * 512 * 4
    assert stats.temp_size_in_bytes < 8 * 768 * 512 * 4
