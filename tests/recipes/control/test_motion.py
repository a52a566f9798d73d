"""A window's motion at every size: what a token holds, and what becomes of it where the window is smaller."""

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.recipes.control.imitator import CHANGE_LEVEL, LEVEL_WIDTH, STATE_LEVEL, motion_tokens, token_features

STRICT = True

STATES, CODE, LENGTH, PATCH = 3, 2, 8, 4


def windows(rows=4, *, size=1.0, still=()):
    inputs = np.random.default_rng(0).standard_normal((rows, LENGTH, STATES + CODE)).astype(np.float32)
    inputs[:, :, :STATES] *= size
    inputs[:, :, list(still)] = 0
    inputs[:, :, STATES:] = 1
    return inputs


def parts(inputs):
    """States, states and changes in units of their roots, code, and the two logarithms, by time."""
    tokens = np.asarray(motion_tokens(jnp.asarray(inputs), states=STATES, patch=PATCH))
    assert tokens.shape == (len(inputs), LENGTH // PATCH, token_features(STATES + CODE, states=STATES, patch=PATCH))
    wide = PATCH * STATES
    views = [tokens[..., i * wide : (i + 1) * wide].reshape(len(inputs), LENGTH, STATES) for i in range(3)]
    rest = tokens[..., 3 * wide :]
    return *views, rest[..., :CODE], rest[..., CODE : CODE + STATES], rest[..., CODE + STATES :]


def test_a_token_holds_states_and_changes_as_they_are_and_in_units_of_their_roots():
    inputs = windows()
    states, scaled, changed, code, level, change_level = parts(inputs)
    x = inputs[..., :STATES]
    change = np.diff(x, axis=1, prepend=x[:, :1])
    roots = [np.sqrt((values**2).mean(axis=1, keepdims=True)) for values in (x, change)]
    np.testing.assert_array_equal(states, x)
    np.testing.assert_allclose(scaled, x / roots[0], rtol=1e-5)
    np.testing.assert_allclose(changed, change / roots[1], rtol=1e-5)
    assert (code == 1).all()
    for found, root, usual in ((level, roots[0], STATE_LEVEL), (change_level, roots[1], CHANGE_LEVEL)):
        expected = np.broadcast_to((np.log(root) - usual) / LEVEL_WIDTH, found.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_thousandth_of_a_window_has_the_same_motion_and_says_its_size():
    large, small = parts(windows()), parts(windows(size=1e-3))
    for view in (1, 2):
        np.testing.assert_allclose(small[view], large[view], rtol=1e-4, atol=1e-5)
    for level in (4, 5):
        np.testing.assert_allclose(large[level] - small[level], np.log(1e3) / LEVEL_WIDTH, rtol=1e-4)


def test_what_does_not_move_is_zero_in_every_view_and_has_a_finite_gradient():
    inputs = windows(still=[1])
    for view in (0, 1, 2, 4, 5):
        assert not parts(inputs)[view][..., 1].any()
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(motion_tokens(x, states=STATES, patch=PATCH) ** 2)))
    assert np.isfinite(np.asarray(gradient(inputs))).all()
