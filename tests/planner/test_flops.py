"""The count of floating-point operations, against counts by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from plimsoll.planner.flops import dot_flops, dots


def counted(function, *shapes):
    return dot_flops(jax.make_jaxpr(function)(*(jnp.zeros(shape) for shape in shapes)))


def test_a_dot_is_two_operations_per_product_times_batch_axes_and_further_contracted_ones():
    assert counted(jnp.dot, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert counted(partial(jnp.einsum, "bij,bjk->bik"), (4, 3, 5), (4, 5, 7)) == 2 * 4 * 3 * 5 * 7
    assert counted(partial(jnp.einsum, "aij,ijk->ak"), (4, 3, 5), (3, 5, 7)) == 2 * 4 * 3 * 5 * 7


def test_a_scan_counts_every_trip():
    def layers(x, weights):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    assert counted(layers, (3, 5), (6, 5, 5)) == 6 * 2 * 3 * 5 * 5


def test_of_branches_the_largest_alone_is_counted():
    """Which one is taken is not known, and no more than one is."""

    def either(x, weights):
        narrow = lambda x: x[:, :2] @ weights[:2]  # noqa: E731
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: x @ weights, narrow, x)

    assert counted(either, (3, 5), (5, 5)) == 2 * 3 * 5 * 5


def test_a_gradient_costs_two_more_dots_and_a_recomputed_one_a_third():
    once = 2 * 3 * 5 * 5
    block = lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w)  # noqa: E731

    def trained(function):
        return counted(jax.value_and_grad(lambda x, w: jnp.sum(function(x, w)), argnums=(0, 1)), (3, 5), (5, 5))

    assert trained(block) == 6 * once
    assert trained(jax.checkpoint(block, prevent_cse=False)) == 8 * once


def test_inner_functions_are_counted_once_and_what_nothing_uses_not_at_all():
    def unused(x, w):
        _ = x @ w
        return x + 1

    assert counted(unused, (3, 5), (5, 7)) == 0
    assert counted(jax.jit(unused), (3, 5), (5, 7)) == 0
    assert counted(jax.jit(jax.jit(jnp.dot)), (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert counted(jax.vmap(jnp.dot, in_axes=(0, None)), (4, 3, 5), (5, 7)) == 2 * 4 * 3 * 5 * 7


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_our_own_dots_are_counted_through_their_custom_gradient(precision):
    from plimsoll.levers.precision import Form, dot

    product = partial(dot, compute=Form(precision, "cpu"))
    assert counted(product, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    trained = jax.value_and_grad(lambda x, w: jnp.sum(product(x, w)), argnums=(0, 1))
    assert counted(trained, (3, 5), (5, 7)) == 3 * 2 * 3 * 5 * 7


def test_what_dots_move_is_read_and_written_once_for_each_and_so_are_they_counted():
    """Four bytes of (3, 5), (5, 7) and (3, 7), outside of a scan and in each of its six trips; two for bfloat16."""

    def product(x, w):
        return x @ w

    def layers(x, w):
        first = x @ w[0]
        return jax.lax.scan(lambda y, w: (y + x @ w, None), first, w)[0]

    one = dots(jax.make_jaxpr(product)(jnp.zeros((3, 5)), jnp.zeros((5, 7))))
    assert one == (2 * 3 * 5 * 7, 4 * (15 + 35 + 21), 1)
    seven = dots(jax.make_jaxpr(layers)(jnp.zeros((3, 5)), jnp.zeros((6, 5, 7))))
    assert seven == (7 * 2 * 3 * 5 * 7, 7 * 4 * (15 + 35 + 21), 7)
    narrow = dots(jax.make_jaxpr(product)(jnp.zeros((3, 5), jnp.bfloat16), jnp.zeros((5, 7), jnp.bfloat16)))
    assert narrow.moved_bytes == 2 * (15 + 35 + 21)
