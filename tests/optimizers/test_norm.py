"""The norm of a gradient, and what it takes: as training compiles it, with single dots for the library."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.norm import LANES, clip_by_norm, global_norm, norms_of_parts
from plimsoll.training.program import compiled
from plimsoll.types import Storage
from plimsoll.units import MIB

SHAPES = [(), (7,), (5, 3, 2), (LANES - 1,), (2 * LANES,), (3, LANES + 1), (16, 1024, 64), (64, 256, 257)]
LARGE = {"kernel": jax.ShapeDtypeStruct((2048, 2048), jnp.float32)}


def drawn(dtype):
    return [(3 * jax.random.normal(jax.random.key(at), shape)).astype(dtype) for at, shape in enumerate(SHAPES)]


def root_of_squares(tree):
    return sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree)) ** 0.5


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_is_the_root_of_all_squares(dtype):
    tree = drawn(dtype)
    assert float(jax.jit(global_norm)(tree)) == pytest.approx(root_of_squares(tree), rel=1e-6)
    assert float(jax.jit(global_norm)([])) == 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("stacked", ["blocks", None])
def test_the_norms_of_parts_are_the_root_of_their_squares(dtype, stacked):
    """Layers of a few numbers, and of so many that they are summed in pieces."""
    shapes = {"blocks": {"bias": (3,), "kernel": (3, 2 * LANES + 1)}, "layers": [(5,), (2, 7)], "head": (3 * LANES,)}
    drawn = iter(range(9))
    tree = jax.tree.map(
        lambda shape: jax.random.normal(jax.random.key(next(drawn)), shape).astype(dtype),
        shapes,
        is_leaf=lambda shape: isinstance(shape, tuple),
    )
    parts = {f"layers/{at}": layer for at, layer in enumerate(tree["layers"])} | {"head": tree["head"]}
    if stacked is None:
        parts["blocks"] = tree["blocks"]
    else:
        parts |= {f"blocks/{at}": {name: leaf[at] for name, leaf in tree["blocks"].items()} for at in range(3)}
    found = jax.jit(lambda tree: norms_of_parts(tree, stacked=stacked))(tree)
    assert {name: float(norm) for name, norm in found.items()} == pytest.approx(
        {f"gradient_norm/{name}": root_of_squares(part) for name, part in parts.items()}, rel=1e-5
    )


@pytest.mark.parametrize("most", [1.0, 1e6])
def test_a_clip_is_that_of_optax(most):
    tree = drawn(jnp.float32)
    ours, theirs = clip_by_norm(most), optax.clip_by_global_norm(most)
    state = ours.init(tree)
    assert state == theirs.init(tree)
    found, expected = (jax.jit(clip.update)(tree, state)[0] for clip in (ours, theirs))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, expected)


@pytest.mark.parametrize(("dtype", "share"), [(jnp.float32, 0.1), (jnp.bfloat16, 2.1)])
def test_no_squares_are_written_out(dtype, share):
    """4 bytes a weight, where XLA sums them: the first of the two asserts may go when it no longer does."""
    tree = {"kernel": jax.ShapeDtypeStruct(LARGE["kernel"].shape, dtype)}
    plain = compiled(jax.jit(lambda tree: jnp.sum(jnp.square(tree["kernel"].astype(jnp.float32)))).lower(tree))
    assert plain.memory_analysis().temp_size_in_bytes > 4 * LARGE["kernel"].size
    taken = compiled(jax.jit(global_norm).lower(tree)).memory_analysis().temp_size_in_bytes
    assert taken < share * LARGE["kernel"].size


@pytest.mark.parametrize("bits", [32, 8])
def test_a_clip_costs_an_update_no_copy_of_a_leaf(bits):
    def bytes_with(clip_norm):
        rule = AdamW(clip_norm=clip_norm).rule(100, Storage(optimizer_bits=bits))
        state = jax.eval_shape(rule.init, LARGE)
        update = jax.jit(lambda gradient, state, params: rule.apply(gradient, state, params), donate_argnums=(1, 2))
        with jax.numpy_dtype_promotion("standard"):  # its schedules multiply floats by an int32 count
            lowered = update.lower(LARGE, state, LARGE)
        return compiled(lowered).memory_analysis().temp_size_in_bytes

    assert bytes_with(1.0) <= bytes_with(None) + MIB
