"""AdamW over narrow state: optax's numbers within a stated error, the bytes it claims, hardly any temporaries."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.levers.eight_bit import BLOCK, Blocks, zeros
from plimsoll.levers.weight_bits import join, random_bits, random_key, readable, widen
from plimsoll.models.decoder import Decoder
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers import adamw8 as adamw8_module
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.adamw8 import Kind, Moments, Numbers, _Leaf, adamw8, bits_of
from plimsoll.optimizers.in_place import PIECE as ELEMENTS
from plimsoll.optimizers.in_place import InPlace
from plimsoll.optimizers.shards import Split
from plimsoll.types import Compute, Storage

EIGHT = Storage(optimizer_bits=8)
STORAGES = [
    Storage(optimizer_bits=8, weight_bits=24),
    Storage(optimizer_bits=32, weight_bits=16),
    Storage(optimizer_bits=16, weight_bits=16),
]
"""Every form of moments and of weights once."""
LR = 1e-2
SETTINGS = AdamW(learning_rate=LR, warmup_steps=0, final_fraction=1.0, weight_decay=0.1, clip_norm=None)
PIECE = 1024
"""Of these tests: several pieces of each leaf, and a rest."""


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # its schedules multiply floats by an int32 count
        yield


UPDATE_BYTES = 12 * ELEMENTS
"""Temporaries of an update, at most, whatever the leaves are: weights, moments and what a piece needs between them."""


def state_bytes(params, storage):
    """Bytes of `init(params)`: without the weights, but with what they have beyond bfloat16."""
    total = 4
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        moments_bits, weight_bits = bits_of(path, leaf, storage)
        scales = 4 * leaf.size // BLOCK if moments_bits == 8 else 0
        moments = 2 * (leaf.size * moments_bits // 8 + scales)
        total += moments + leaf.size * (weight_bits == 24)
    return total


def weight_bytes(params, storage):
    """Bytes of `store(params)`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return sum(leaf.size * (4 if bits_of(path, leaf, storage)[1] == 32 else 2) for path, leaf in leaves)


def params_of(seed=0):
    """Stacked layers (7 pieces and a rest of a half), a square, an embedding, a norm, a small and an odd matrix."""
    random = np.random.default_rng(seed)
    shapes = {
        "blocks": {"gate": {"kernel": (3, 40, 64)}, "norm": {"scale": (3, 4096)}},
        "square": (64, 64),
        "embedding": (80, 64),
        "small": (8, 8),
        "odd": (67, 67),
    }
    return jax.tree.map(
        lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda shape: isinstance(shape, tuple),
    )


def few_params(seed=0):
    """One of each: a stack of matrices, and a norm."""
    return {"blocks": params_of(seed)["blocks"]}


def gaussian(random, shape):
    return random.normal(size=shape) + 0.3


def heterogeneous(random, shape):
    """Magnitudes spread over two decades inside a block, the same elements large at every step."""
    spread = np.random.default_rng(9).lognormal(sigma=1.0, size=shape)
    return (random.normal(size=shape) + 0.3) * spread


def sparse(random, shape):
    """Nine of ten are exactly zero."""
    return random.normal(size=shape) * (random.random(shape) < 0.1)


def tiny(random, shape):
    return 1e-12 * (random.normal(size=shape) + 0.3)


def gradients(distribution, params, steps, seed=1):
    random = np.random.default_rng(seed)
    return [
        jax.tree.map(lambda leaf: jnp.asarray(distribution(random, leaf.shape), jnp.float32), params)
        for _ in range(steps)
    ]


def trained(optimizer, params, given):
    """`store`, then `apply` for every gradient: what is stored and the state."""
    stored, state = optimizer.store(params), optimizer.init(params)
    apply = jax.jit(optimizer.apply)
    for gradient in given:
        stored, state = apply(gradient, state, stored)
    return stored, state


def weights_of(stored, state):
    """What training has reached, in float32."""

    def one(leaf, moments):
        if moments.rest is not None:
            return join(leaf, moments.rest)
        return widen(leaf) if leaf.dtype == jnp.uint16 else leaf

    return jax.tree.map(one, stored, state.leaves)


def reference(params, given, settings=SETTINGS):
    optimizer = settings.rule(1000)
    state, update = optimizer.init(params), jax.jit(optimizer.apply)
    for gradient in given:
        params, state = update(gradient, state, params)
    return params


def moved_error(actual, expected, start):
    """Of the way moved, the share that is wrong, leaf by leaf."""
    error = lambda a, e, s: float(jnp.linalg.norm(a - e) / jnp.linalg.norm(e - s))  # noqa: E731
    return jax.tree.map(error, actual, expected, start)


@pytest.mark.parametrize(("distribution", "within"), [(heterogeneous, 0.1), (sparse, 0.03), (tiny, 0.02)])
def test_eight_bits_move_weights_as_optax_does(distribution, within):
    params = params_of()
    given = gradients(distribution, params, 8)
    settings = replace(SETTINGS, epsilon=1e-20)  # far below the smallest of them
    actual = weights_of(*trained(adamw8(settings.adam(1000), EIGHT, piece=PIECE), params, given))
    errors = moved_error(actual, reference(params, given, settings), params)
    for leaf in (errors["blocks"]["gate"]["kernel"], errors["square"]):
        assert 1e-4 < leaf < within  # it is 8 bits, and near
    for exact in (errors["embedding"], errors["small"], errors["odd"], errors["blocks"]["norm"]["scale"]):
        assert exact < 1e-5


def test_all_the_settings_reach_it():
    """Schedule, betas, epsilon, decay but for norms, and the clip over all leaves; 32 bits round nothing."""
    settings = AdamW(
        learning_rate=3e-2, warmup_steps=3, weight_decay=0.3, beta1=0.8, beta2=0.9, epsilon=1e-2, clip_norm=5.0
    )
    params = params_of()
    given = gradients(gaussian, params, 6)
    given[3] = jax.tree.map(lambda leaf: leaf * 1e-4, given[3])  # below the clip
    actual = weights_of(*trained(adamw8(settings.adam(6), Storage(), piece=PIECE), params, given))
    expected = settings.rule(6)
    assert max(jax.tree.leaves(moved_error(actual, optax_weights(expected, params, given), params))) < 1e-4


def optax_weights(optimizer, params, given):
    state = optimizer.init(params)
    for gradient in given:
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_a_small_second_moment_beside_large_ones_does_not_explode():
    """Every eighth element is 200,000 times smaller. Its neighbours change sign, so beside theirs its mean is large
    enough to be kept. Were its second moment rounded to zero, the next quiet step would divide by epsilon.
    """
    small = (np.arange(4096) % 8 == 0).reshape(64, 64)
    settings = replace(SETTINGS, weight_decay=0.0)
    params, optimizer = {"kernel": jnp.zeros((64, 64))}, adamw8(settings.adam(1000), EIGHT)
    state = naive_state = optimizer.init(params)
    update, largest, naive = jax.jit(optimizer.update), 0.0, 0.0
    for step in range(12):
        gradient = {"kernel": jnp.asarray(np.where(small, 5e-6 * (step % 2), (-1.0) ** step), jnp.float32)}
        updates, state = update(gradient, state, params)
        largest = max(largest, float(jnp.abs(updates["kernel"]).max() / LR))
        updates, naive_state = update(gradient, naive_state, params)
        naive = max(naive, float(jnp.abs(updates["kernel"]).max() / LR))
        naive_state = naive_state._replace(leaves=jax.tree.map(_floorless, naive_state.leaves, is_leaf=_is_moments))
    assert largest < 2
    assert naive > 50


def _is_moments(node):
    return hasattr(node, "variance")


def _floorless(moments):
    """As it would be without the floor: the smallest code is what is nearest to zero."""
    codes = moments.variance.codes
    return moments._replace(
        variance=moments.variance._replace(codes=jnp.where(codes == 1, 0, codes).astype(codes.dtype))
    )


def test_a_second_moment_follows_a_gradient_that_fades():
    """It shrinks by less than a code each step; rounded to the nearest it would stay where its block's scale is."""
    falling = np.where(np.arange(4096) % 64 == 0, 1.0, 0.995 ** np.arange(400)[:, None]).reshape(400, 64, 64)
    settings = AdamW(learning_rate=LR, warmup_steps=0, beta2=0.99, clip_norm=None)
    optimizer = adamw8(settings.adam(1000), EIGHT)
    params = {"kernel": jnp.zeros((64, 64))}
    state, update = optimizer.init(params), jax.jit(optimizer.apply)
    exact = np.zeros((64, 64))
    for gradient in falling:
        params, state = update({"kernel": jnp.asarray(gradient, jnp.float32)}, state, params)
        exact = 0.99 * exact + 0.01 * gradient**2
    kept = state.leaves["kernel"].variance
    root = (np.asarray(kept.codes, np.float64).reshape(-1, 64) / 255) ** 2 * np.asarray(kept.scales)[:, None]
    ratio = root[:, 1:] / np.sqrt(exact).reshape(-1, 64)[:, 1:]
    assert ratio.mean() == pytest.approx(1.0, abs=0.02)


def test_in_16_bits_moments_follow_where_the_nearest_bfloat16_would_stand_still():
    """With beta2 = 0.999 a step changes it by a quarter of the distance between two of them."""
    optimizer = adamw8(replace(SETTINGS, beta2=0.999).adam(1000), Storage(optimizer_bits=16), piece=PIECE)
    params = {"kernel": jnp.ones((64, 64), jnp.float32)}
    state, update = optimizer.init(params), jax.jit(optimizer.apply)
    exact = 0.0
    for gradient in (1.0, *[1.2] * 40):
        params, state = update({"kernel": jnp.full((64, 64), gradient, jnp.float32)}, state, params)
        exact = 0.999 * exact + 0.001 * gradient**2
    moments = state.leaves["kernel"]
    assert (moments.mean.dtype, moments.variance.dtype) == (jnp.uint16, jnp.uint16)
    assert float(widen(moments.variance).mean()) == pytest.approx(exact, rel=2e-3)
    assert float(widen(moments.mean).mean()) == pytest.approx(1.2, rel=0.02)


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_update_then_apply_updates_is_apply(storage):
    """optax's way needs parameters that can be added to: bfloat16, not its bits."""
    optimizer = adamw8(SETTINGS.adam(1000), storage, piece=PIECE)
    assert isinstance(optimizer, optax.GradientTransformation)
    params = few_params()
    (gradient,) = gradients(gaussian, params, 1)
    stored, state = optimizer.store(params), optimizer.init(params)
    applied, applied_state = jax.jit(optimizer.apply)(gradient, state, stored)
    updates, updated_state = jax.jit(optimizer.update)(gradient, state, readable(stored))
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype("float32")}
    added = optax.apply_updates(readable(stored), updates)
    for one, other in zip(jax.tree.leaves(added), jax.tree.leaves(readable(applied)), strict=True):
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), rtol=1e-6, atol=1e-7)
    for one, other in zip(jax.tree.leaves(updated_state), jax.tree.leaves(applied_state), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_pieces_change_no_number(storage):
    params = few_params()
    given = gradients(heterogeneous, params, 3)
    whole = trained(adamw8(SETTINGS.adam(1000), storage, piece=2**20), params, given)
    actual = trained(adamw8(SETTINGS.adam(1000), storage, piece=448), params, given)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(whole), strict=True):
        # The compiler may contract a product and a sum in one and not in the other: at most a code apart.
        code = one.dtype != np.float32
        assert (np.abs(np.float64(one) - np.float64(other)) <= 1e-6 * np.abs(np.float64(other)) + code).all()


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_bfloat16_leaves_are_updated_like_their_bits(storage):
    optimizer = adamw8(SETTINGS.adam(1000), storage, piece=PIECE)
    params = few_params()
    (gradient,) = gradients(gaussian, params, 1)
    stored, state = optimizer.store(params), optimizer.init(params)
    seen = readable(stored)
    from_bits, state_of_bits = jax.jit(optimizer.apply)(gradient, state, stored)
    from_seen, state_of_seen = jax.jit(optimizer.apply)(gradient, state, seen)
    assert jax.tree.map(lambda leaf: leaf.dtype, from_seen) == jax.tree.map(lambda leaf: leaf.dtype, seen)
    for one, other in zip(
        jax.tree.leaves((from_seen, state_of_seen)),
        jax.tree.leaves((readable(from_bits), state_of_bits)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_a_bfloat16_gradient_is_read_as_the_float32_it_stands_for():
    optimizer = adamw8(SETTINGS.adam(1000), Storage(optimizer_bits=8, weight_bits=24), piece=PIECE)
    params = few_params()
    (gradient,) = gradients(gaussian, params, 1)
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), gradient)
    one = trained(optimizer, params, [rounded])
    other = trained(optimizer, params, [jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded)])
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_24_bits_follow_float32_where_bfloat16_stands_still():
    """Updates of a tenth of bfloat16's step, 50 of them; and 16 bits follow in the mean."""
    settings = AdamW(learning_rate=4e-4, warmup_steps=0, final_fraction=1.0, weight_decay=0.0, clip_norm=None)
    params = {"kernel": jnp.ones((128, 128))}
    given = [{"kernel": jnp.ones((128, 128))}] * 50
    expected = reference(params, given, settings)["kernel"]
    moved = float(1 - expected.mean())
    assert 0.019 < moved < 0.021

    naive = params["kernel"].astype(jnp.bfloat16)
    for _ in given:
        naive = naive - jnp.bfloat16(4e-4)
    assert float(1 - naive.mean()) == 0

    storage = Storage(optimizer_bits=8, weight_bits=24)
    reached = weights_of(*trained(adamw8(settings.adam(1000), storage), params, given))["kernel"]
    np.testing.assert_allclose(reached, expected, atol=50 * 2.0**-16)
    stored, state = trained(adamw8(settings.adam(1000), Storage(weight_bits=16)), params, given)
    reached = np.asarray(weights_of(stored, state)["kernel"], np.float64)
    step = 2.0**-8  # of bfloat16 below 1
    deviation = (50 * 4e-4 / step) ** 0.5 * step / reached.size**0.5
    assert 1 - reached.mean() == pytest.approx(moved, abs=5 * deviation)
    assert len(np.unique(reached)) > 3  # rounded element by element, not all alike


def test_a_restart_continues_to_the_same_bits():
    """Random rounding draws on the step and the element, so state and weights are all there is to keep."""
    optimizer = adamw8(SETTINGS.adam(1000), Storage(optimizer_bits=8, weight_bits=16), piece=PIECE)
    params = few_params()
    given = gradients(gaussian, params, 4)
    uninterrupted = trained(optimizer, params, given)
    halfway = jax.device_get(trained(optimizer, params, given[:2]))
    stored, state = jax.tree.map(jnp.asarray, halfway)
    apply = jax.jit(optimizer.apply)
    for gradient in given[2:]:
        stored, state = apply(gradient, state, stored)
    for one, other in zip(jax.tree.leaves((stored, state)), jax.tree.leaves(uninterrupted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_not_finite_shows():
    params = params_of()
    gradient = jax.tree.map(jnp.ones_like, params)
    gradient["square"] = gradient["square"].at[3, 3].set(jnp.nan)
    optimizer = adamw8(SETTINGS.adam(1000), Storage(optimizer_bits=8, weight_bits=16), piece=PIECE)
    weights = weights_of(*trained(optimizer, params, [gradient]))
    assert np.isnan(weights["square"][3, 3])
    assert np.isfinite(weights["embedding"]).all()


def decoder_shapes(**sizes):
    shape = DecoderShape(**{"vocab": 512, "width": 128, "layers": 2, "heads": 4, "inner": 384} | sizes)
    return jax.eval_shape(Decoder(shape, Compute()).init, jax.random.key(0))


def test_matrices_are_narrow_and_embeddings_norms_and_the_output_layer_are_not():
    params = decoder_shapes(tied=False)
    paths = jax.tree_util.tree_leaves_with_path(params)
    storage = Storage(optimizer_bits=8, weight_bits=24)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/kernel")  # noqa: E731
    wide_moments = {name(path) for path, leaf in paths if bits_of(path, leaf, storage)[0] == 32}
    wide_weights = {name(path) for path, leaf in paths if bits_of(path, leaf, storage)[1] == 32}
    norms = {"blocks/attention_norm/scale", "blocks/feed_norm/scale", "norm"}
    assert wide_moments == {"embedding", "head", *norms}
    assert wide_weights == norms


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_bytes_are_those_that_are_charged(storage):
    optimizer, tree = adamw8(SETTINGS.adam(1000), storage), jax.eval_shape(params_of)
    size = lambda shapes: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))  # noqa: E731
    assert size(jax.eval_shape(optimizer.init, tree)) == state_bytes(tree, storage)
    assert size(jax.eval_shape(optimizer.store, tree)) == weight_bytes(tree, storage)


def test_bytes_of_a_matrix_and_its_state():
    tree = {"kernel": jax.ShapeDtypeStruct((4, 1024, 1024), jnp.float32)}
    size = tree["kernel"].size
    assert state_bytes(tree, EIGHT) <= 2.15 * size
    for bits, together in ((24, 5.2), (16, 4.2)):
        storage = Storage(optimizer_bits=8, weight_bits=bits)
        assert state_bytes(tree, storage) + weight_bytes(tree, storage) <= together * size


def compiled_bytes(optimizer, tree, *, gradient=jnp.float32):
    """Temporaries of the donated update, and what it returns beside what it was given to write over."""
    stored, state = jax.eval_shape(optimizer.store, tree), jax.eval_shape(optimizer.init, tree)
    given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, gradient), tree)
    step = jax.jit(lambda g, stored, state: optimizer.apply(g, state, stored), donate_argnums=(1, 2))
    stats = step.lower(given, stored, state).compile().memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


MATRIX = {"kernel": jax.ShapeDtypeStruct((16, 1024, 1024), jnp.float32)}
MANY = {f"layer_{n}": jax.ShapeDtypeStruct((400, 400), jnp.float32) for n in range(8)}


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_an_update_needs_what_is_charged_and_that_is_a_third_of_a_byte_per_parameter(storage):
    assert 0.35 * MATRIX["kernel"].size > UPDATE_BYTES
    assert UPDATE_BYTES / 4 < compiled_bytes(adamw8(SETTINGS.adam(1000), storage), MATRIX) <= UPDATE_BYTES


def test_many_leaves_need_no_more_than_one():
    """With the norm of all of them, too. All at once they would need 10 MiB."""
    settings = replace(SETTINGS, clip_norm=1.0)
    assert compiled_bytes(adamw8(settings.adam(1000), EIGHT), MANY) <= UPDATE_BYTES


def test_a_bfloat16_gradient_is_not_widened_whole():
    assert compiled_bytes(adamw8(SETTINGS.adam(1000), EIGHT), MATRIX, gradient=jnp.bfloat16) <= UPDATE_BYTES


def test_32_bits_everywhere_is_optax_in_place():
    params = params_of()
    given = gradients(gaussian, params, 3)
    optimizer = SETTINGS.rule(1000)
    assert isinstance(optimizer, InPlace)
    assert optimizer.store(params) is params
    adamw = partial(optax.adamw, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.1)(
        LR,
        mask={**jax.tree.map(lambda _: True, params), "blocks": {"gate": {"kernel": True}, "norm": {"scale": False}}},
    )
    for one, other in zip(
        jax.tree.leaves(optax_weights(optimizer, params, given)),
        jax.tree.leaves(optax_weights(adamw, params, given)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert not any(
        isinstance(leaf, Blocks)
        for leaf in jax.tree.leaves(optimizer.init(params), is_leaf=lambda x: isinstance(x, Blocks))
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [({"optimizer_bits": 4}, "one of 32, 16, 8, got 4"), ({"weight_bits": 8}, "one of 32, 24, 16, got 8")],
)
def test_other_widths_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        Storage(**given)


def test_narrow_weights_are_seen_as_bfloat16():
    params = params_of()
    for bits in (24, 16):
        optimizer = adamw8(SETTINGS.adam(10), Storage(weight_bits=bits))
        seen = readable(optimizer.store(params))
        assert (seen["square"].dtype, seen["small"].dtype) == (jnp.bfloat16, jnp.float32)
        error = np.abs(np.asarray(seen["square"], np.float64) - np.asarray(params["square"]))
        half_a_step = 2.0**-8 * (1 + 2.0**-7)
        assert (error <= half_a_step * np.abs(params["square"])).all()
        start = weights_of(optimizer.store(params), optimizer.init(params))
        exact = 2.0 ** {24: -16, 16: -8}[bits]
        np.testing.assert_allclose(start["square"], params["square"], rtol=exact)


@pytest.mark.slow
def test_split_over_devices_it_is_the_same_to_the_bit_and_gathers_nothing_where_shards_are_whole_blocks():
    """Random rounding included: it draws on an element's place in the whole leaf. A gathered leaf alone would be more
    than what is charged: the last two, whose shards are no whole blocks, need it."""
    script = Path(__file__).parents[1] / "support/narrow_shards.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["differ"] for report in reports] == [0, 0, 0, 0]
    assert [report["temp_bytes"] <= report["charged_bytes"] for report in reports] == [True, True, False, False]


def test_a_second_moment_is_rounded_with_other_random_bits_than_its_weight():
    """Weights half-way between two of bfloat16, and second moments half-way between two codes."""
    gradient = np.full((256, 64), (100.5 / 255) ** 2)
    gradient[:, 0] = 1.0  # the scale of each block
    half_a_step = 2.0**-9  # of bfloat16, below 1
    settings = replace(SETTINGS, learning_rate=half_a_step, weight_decay=0.0, epsilon=1e-20)
    both = Storage(optimizer_bits=8, weight_bits=16)
    given = [{"kernel": jnp.asarray(gradient, jnp.float32)}]
    stored, state = trained(adamw8(settings.adam(1000), both), {"kernel": jnp.ones((256, 64))}, given)
    weight_is_up = np.asarray(widen(stored["kernel"]))[:, 1:] == 1.0
    codes = np.asarray(state.leaves["kernel"].variance.codes)[:, 1:]
    assert set(np.unique(codes)) == {100, 101}
    assert np.mean(weight_is_up) == pytest.approx(0.5, abs=0.03)
    assert np.mean(weight_is_up == (codes == 101)) == pytest.approx(0.5, abs=0.03)


def test_random_bits_are_of_an_elements_place_in_the_leaf(monkeypatch):
    """They are part of what a seed promises: a run that is continued by a later version rounds alike."""
    asked = []

    def recorded(key, elements):
        asked.append((key, elements))
        return random_bits(key, elements)

    monkeypatch.setattr(adamw8_module.weight_bits, "random_bits", recorded)
    now = Numbers(*[jnp.float32(1)] * 4, step=jnp.int32(7))
    leaf = _Leaf(Kind(8, 16, True, 5), now, SETTINGS, Split.of((128, 64)), piece=BLOCK)
    weights, moments = jnp.zeros((3, BLOCK), jnp.uint16), Moments(*2 * [zeros((3, BLOCK))], None)
    leaf.rows(jnp.int32(2), (weights, moments), jnp.ones((3, BLOCK)))
    ((key, elements),) = asked
    np.testing.assert_array_equal(elements, jnp.arange(2 * 64, 5 * 64, dtype=jnp.uint32).reshape(3, 64))
    np.testing.assert_array_equal(key, random_key(jnp.int32(7), 5))
