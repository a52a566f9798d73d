"""Parts of an array that are changed in turn: which pieces, each once, and in which order, by changes that say so."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.optimizers import in_place as module
from plimsoll.optimizers.in_place import apart, at_once, in_place, over_layer, over_pieces
from plimsoll.optimizers.streaming import elementwise

STRICT = True


def numbered(sizes):
    """A change that adds what is read and the number of its row, and notes how many rows it is compiled for."""

    def change(start, changed, read):
        sizes.append(changed.shape[0])
        rows = start + jnp.arange(changed.shape[0], dtype=jnp.int32)
        return changed + read + 100 * rows[:, None].astype(jnp.float32)

    return change


@pytest.mark.parametrize(
    ("rows", "piece", "sizes"),
    [
        (12, 5, {4}),  # the largest divisor above half a piece
        (4, 9, {4}),
        (7, 5, {5, 2}),  # no divisor: once a piece, and what is left
        (14, 4, {4, 2}),  # two divides, and is too small a piece
        (10, 1, {1}),
        (1, 3, {1}),
    ],
)
def test_every_row_is_changed_once_and_knows_its_number(rows, piece, sizes):
    traced, first = [], 3
    before = jnp.arange(2.0 * (rows + 5)).reshape(-1, 2)
    read = jnp.full((rows, 2), 0.5)
    new, token = jax.jit(
        lambda changed, read, token: over_pieces(
            numbered(traced), changed, read, rows=rows, piece=piece, token=token, first=first
        )
    )(before, read, jnp.int32(5))
    expected = np.array(before)
    for row in range(first, first + rows):
        expected[row] += 0.5 + 100 * row
    np.testing.assert_array_equal(new, expected)
    assert int(token) == 5
    assert set(traced) == sizes


@pytest.mark.parametrize(("shape", "sizes"), [((6, 4), {2}), ((6,), {1}), ((2, 3, 4), {1})])
def test_a_layer_is_changed_in_pieces_of_so_many_elements(monkeypatch, shape, sizes):
    """Layers of 6 rows of 4: pieces of two rows. A layer without rows is one row."""
    monkeypatch.setattr(module, "PIECE", 11)
    traced, rows = [], shape[0] if len(shape) > 1 else 1
    stacked, layer = jnp.zeros((3, *shape)), jnp.full(shape, 0.5)
    new, _ = jax.jit(over_layer, static_argnums=0)(numbered(traced), stacked, layer, jnp.int32(1), jnp.int32(0))
    expected = np.zeros((3, *shape))
    expected[1] = (0.5 + 100 * (rows + np.arange(rows)))[(slice(None), *[None] * (len(shape) - 1))]
    np.testing.assert_array_equal(new, expected)
    assert set(traced) == sizes


@pytest.mark.parametrize("token", [0, 7])
def test_what_is_kept_apart_is_what_it_would_be_and_the_token_stays(token):
    """0 is the first token there is."""
    result, after = apart(lambda x, y: {"sum": x + y}, (jnp.float32(2), jnp.float32(3)), jnp.int32(token))
    assert (float(result["sum"]), int(after)) == (5.0, token)


@pytest.mark.parametrize("token", [0, 7])
def test_what_is_done_at_once_is_done_once(token):
    result, after = at_once(lambda carry, token: (carry + 1, token), jnp.float32(2), jnp.int32(token))
    assert (float(result), int(after)) == (3.0, token)


def test_an_optimizer_keeps_what_it_has_and_takes_what_is_given_besides():
    plain = in_place(optax.sgd(0.5))
    assert (plain.parts, plain.average, plain.row_rule) == (None, None, None)
    both = in_place(plain, average="average", row_rule="row rule")
    assert (both.average, both.row_rule) == ("average", "row rule")
    again = in_place(both)
    assert (again.average, again.row_rule, again.init, again.apply) == ("average", "row rule", plain.init, plain.apply)
    assert in_place(both, average="another").average == "another"


def test_any_transformation_is_applied_as_optax_applies_it():
    rule = in_place(optax.sgd(0.5))
    params = {"a": jnp.ones(3)}
    new, _ = rule.apply({"a": jnp.full(3, 2.0)}, rule.init(params), params)
    np.testing.assert_array_equal(new["a"], np.zeros(3))
    assert rule.store(params) is params


def test_layers_and_the_rest_are_updated_as_the_whole_is_with_the_clip_that_is_given():
    """Three layers of a stack and what lies beside it, clipped to half: as the whole update of half the gradient."""
    with jax.numpy_dtype_promotion("standard"):  # of optax's own
        _layers_and_the_rest(optax.adam(0.1))


def _layers_and_the_rest(adam):
    params = {"blocks": {"kernel": jnp.ones((3, 4, 2)), "bias": jnp.ones((3, 2))}, "head": jnp.ones(5)}
    random = np.random.default_rng(0)
    gradient = jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape), jnp.float32), params)
    half = jax.tree.map(lambda x: 0.5 * x, gradient)
    expected = jax.jit(in_place(adam).apply)(half, adam.init(params), params)
    parts = elementwise(adam, clip_norm=3.0)
    assert parts.clip_norm == 3.0

    @jax.jit
    def in_parts(trees, gradient):
        def layer(n, both):
            trees, token = both
            of_layer = jax.tree.map(lambda x: x[2 - n], gradient["blocks"])
            return parts.layer(trees, of_layer, module.Layer("blocks", 2 - n), jnp.float32(0.5), token)

        trees, _ = jax.lax.fori_loop(0, 3, layer, (trees, jnp.int32(0)))
        return parts.rest(trees, {"head": gradient["head"]}, "blocks", jnp.float32(0.5))

    trees = in_parts((params, adam.init(params)), gradient)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), trees, expected)
