"""A frozen embedding and output layer in fewer bits: the loss of what the codes mean, in the bytes of the codes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.api.planning.pins import require_levers
from plimsoll.errors import RecipeError
from plimsoll.levers.frozen import Packed, columns, packed, widened
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Plan
from plimsoll.recipes.finetune.task import Published
from plimsoll.training.program import Functions, compiled, tree_bytes
from plimsoll.types import Compute, Levers, StepOptions
from pretrained_folders import LLAMA, drawn
from tuning_files import SHAPE, small

WIDE = replace(LLAMA, vocab=512, width=128, layers=1)
PLAN = Plan(
    chip="cpu",
    accumulation=1,
    levers=Levers(
        micro_batch=4, remat="none", loss_chunk=0, precision="float32", prefetch=0, async_save=False, frozen_bits=4
    ),
)


def how(bits):
    return Compute(levers=Levers(embedding_bits=bits))


def batch():
    ids = np.random.default_rng(0).integers(0, 200, (2, 17)).astype(np.int32)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def words(params):
    return {name: params[name] for name in ("embedding", "head") if name in params}


def loss_of(task, weights):
    return jax.jit(lambda weights: task.loss({"trainable": weights}, None, batch(), None, train=False)[0].total)(
        weights
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_columns_of_a_packed_kernel_are_rows_of_what_it_means(bits):
    table = jnp.asarray(np.random.default_rng(0).standard_normal((40, 128), np.float32))
    kernel, at = packed(table.T, bits), jnp.array([[3, 3, 39], [0, 7, 20]])
    np.testing.assert_array_equal(columns(kernel, at), widened(kernel).T[at])


@pytest.mark.parametrize(("bits", "tied"), [(8, True), (4, False)])
def test_the_loss_is_that_of_the_table_which_the_codes_mean(bits, tied):
    shape = replace(WIDE, tied=tied)
    task = Published(shape, how(bits), frozen=True)
    params = jax.jit(task.decoder.init)(jax.random.key(0))
    stored = task.stored(params, 32)
    assert all(isinstance(leaf, Packed) and leaf.bits == bits for leaf in words(stored).values())
    assert set(words(stored)) == ({"embedding"} if tied else {"embedding", "head"})
    meant = stored | {"embedding": widened(stored["embedding"]).T}
    meant |= {} if tied else {"head": widened(stored["head"])}
    found = loss_of(task, stored)
    np.testing.assert_allclose(found, loss_of(task, meant), rtol=1e-6)
    assert found != loss_of(task, params)


def test_by_default_they_are_kept_as_they_were():
    task, plain = (Published(WIDE, compute, frozen=True) for compute in (how(16), Compute()))
    params = jax.jit(task.decoder.init)(jax.random.key(0))
    for bits in (32, 4):
        stored = task.stored(params, bits)
        jax.tree.map(np.testing.assert_array_equal, stored, plain.stored(params, bits))
        size = 4 if bits == 32 else 2
        assert [leaf.dtype.itemsize for leaf in words(stored).values()] == [size, size]


def test_published_weights_are_read_into_the_same_codes(tmp_path):
    recipe = small(tmp_path)
    task = recipe.task(how(4))
    params = task.init(jax.random.key(0))
    blank = params | {"frozen": task.stored(params["frozen"], 4)}
    base = recipe.open(None).load(blank)["frozen"]["base"]
    published = drawn(SHAPE)
    expected = packed(jnp.asarray(published["model.embed_tokens.weight"]).T, 4)
    jax.tree.map(np.testing.assert_array_equal, base["embedding"], expected)
    jax.tree.map(
        np.testing.assert_array_equal, base["head"], packed(jnp.asarray(published["lm_head.weight"]).T, 4)
    )  # fmt: skip


@pytest.mark.slow
def test_the_plan_and_the_compiled_step_count_the_bytes_of_the_codes(tmp_path):
    recipe = small(tmp_path).replace(seq_len=16)

    def bytes_of(bits):
        plan = PLAN.with_levers(embedding_bits=bits)
        batch = recipe.spec.batch(4)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by its int32 count
            task, rule = recipe.task(plan.compute("cpu")), recipe.update_rule(10, plan.storage)
            program = Functions(task, rule, plan, StepOptions()).program(batch=batch, evaluation_batch=batch)
        stats = compiled(program.step).memory_analysis()
        assert stats.alias_size_in_bytes == tree_bytes(program.state)
        return tree_bytes(program.state), stats.argument_size_in_bytes

    (state, arguments), (fewer_state, fewer_arguments) = bytes_of(16), bytes_of(4)
    groups = -(-SHAPE.width // 64)  # of one table: half a byte a code, two bytes a scale
    saved = 2 * SHAPE.vocab * (2 * SHAPE.width - groups * (32 + 2))
    assert state - fewer_state == arguments - fewer_arguments == saved


def test_it_is_the_users_choice_and_for_frozen_weights_alone(tmp_path):
    lever = LEVERS["embedding_bits"]
    assert lever.by_user
    recipe = small(tmp_path)
    assert lever.missing(4, recipe.hints.levers) is None
    whole = recipe.replace(lora_rank=0)
    assert lever.missing(4, whole.hints.levers) is not None
    assert lever.missing(16, whole.hints.levers) is None
    with pytest.raises(RecipeError, match="--embedding-bits cannot be 5"):
        require_levers({"embedding_bits": 5})
