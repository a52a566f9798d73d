"""A state on the host is updated to the same numbers, and the device never holds all of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plimsoll.errors import RecipeError
from plimsoll.levers.offload import DEVICE, HOST, SMALLEST_MOVED, host_bytes, memory_kinds, on_host, over_host_pieces
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.in_place import in_place
from plimsoll.recipes.registry import preset
from plimsoll.training.checkpoint import Checkpoints, load_state
from plimsoll.training.fingerprint import fingerprint
from plimsoll.training.program import compiled, lower, tree_bytes
from plimsoll.training.step import evaluated
from plimsoll.types import Plan

RECIPE = replace(
    preset("stories"), width=128, layers=3, heads=4, vocab_size=300, seq_len=32, batch_size=4, warmup_steps=2,
    ema_decay=0.9,
)  # fmt: skip
PLAN = Plan(
    chip="cpu", micro_batch=2, accumulation=2, remat="block", loss_chunk=0, precision="float32", prefetch=0,
    async_save=False,
)  # fmt: skip
"""On a CPU the search refuses the lever; JAX has the memory kinds there, so that what it does can be seen."""
HOSTED = replace(PLAN, offload="optimizer")


@pytest.fixture(autouse=True, scope="module")  # the trainings below are of a module, too
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def lowered(plan, recipe=RECIPE):
    return lower(
        recipe.task(plan.compute("cpu")),
        recipe.update_rule(20),
        plan,
        batch=recipe.batch_spec(recipe.effective_batch),
        evaluation_batch=recipe.batch_spec(plan.micro_batch),
    )


def kinds(state):
    return [leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)]


def leaves(state):
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in flat]


def batches(steps):
    random = np.random.default_rng(0)
    for _ in range(steps):
        yield {
            name: random.integers(0, 300, shape).astype(dtype) for name, (shape, dtype) in RECIPE.batch_spec(4).items()
        }


def trained(plan, steps):
    program = lowered(plan)
    step, state, losses = compiled(program.step), compiled(program.init)(np.uint32(0)), []
    for batch in batches(steps):
        state, metrics = step(state, batch)
        losses.append(np.asarray(metrics["loss"]))
    return program, step, state, losses


@pytest.fixture(scope="module")
def both():
    return trained(PLAN, 20), trained(HOSTED, 20)


def test_twenty_steps_with_the_state_on_the_host_are_those_on_the_device(both):
    """Up to rounding: the compiler fuses a loop over pieces otherwise."""
    (_, _, device, device_losses), (_, _, host, host_losses) = both
    np.testing.assert_allclose(host_losses, device_losses, rtol=1e-6)
    for (path, there), (_, here) in zip(leaves(host), leaves(device), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6, err_msg=path)
    moved = [np.max(np.abs(there)) for path, there in leaves(host) if "mu" in path]
    assert min(moved) > 1e-6, "moments that no step has touched would agree, too"


def test_the_average_lies_on_the_host_too_and_an_evaluation_fetches_it(both):
    program, _, state, _ = both[1]
    assert set(kinds(state["ema"])) == {HOST, DEVICE}
    assert host_bytes(program.state, "optimizer") > 2.5 * host_bytes({"ema": program.state["ema"]}, "optimizer") > 0
    batch = {name: values[: PLAN.micro_batch] for name, values in next(batches(1)).items()}
    here, there = (evaluate_of(one, batch) for one in both)
    assert there == pytest.approx(here, rel=1e-6)


def evaluate_of(trained, batch):
    program, _, state, _ = trained
    return compiled(program.evaluate)(evaluated(state), batch)["loss"].total.item()


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 70),
    inner=st.sampled_from([(), (3,), (2, 5)]),
    piece=st.integers(1, 80),
    hosted=st.booleans(),
)
def test_every_row_is_changed_once_wherever_it_lies(rows, inner, piece, hosted):
    """Exact: integers."""
    shape, mesh = (rows, *inner), Mesh(np.asarray(jax.devices()[:1]), ("device",))
    there = NamedSharding(mesh, PartitionSpec(), memory_kind=HOST if hosted else DEVICE)
    random = np.random.default_rng(rows)
    own, weight, slope = (random.integers(-9, 9, shape).astype(np.int32) for _ in range(3))

    def change(changed, read):
        assert not on_host(changed["own"])
        return {"own": 2 * changed["own"] + read, "weight": changed["weight"] - changed["own"]}

    @jax.jit
    def changed(own, weight, slope):
        return over_host_pieces(change, {"own": own, "weight": weight}, slope, piece=piece)

    new = changed(jax.device_put(own, there), weight, slope)
    assert np.array_equal(new["own"], 2 * own + slope)
    assert np.array_equal(new["weight"], weight - own)
    assert new["own"].sharding.memory_kind == there.memory_kind


def test_large_leaves_of_the_optimizer_and_the_average_lie_on_the_host_and_nothing_else(both):
    _, (program, _, state, _) = both
    wanted = memory_kinds(program.state, "optimizer")
    assert kinds(state) == jax.tree.leaves(wanted), "after twenty steps as before the first"
    for path, kind in jax.tree_util.tree_flatten_with_path(wanted)[0]:
        assert kind == DEVICE or path[0].key in ("optimizer", "ema")
    small = [leaf.size for leaf, kind in zip(jax.tree.leaves(state), kinds(state), strict=True) if kind == DEVICE]
    assert min(small) == 1, "counts are not worth moving"
    assert set(jax.tree.leaves(memory_kinds(program.state, "none"))) == {DEVICE}


def test_the_device_holds_fewer_bytes_by_the_kinds_of_memory_of_the_compiled_step(both):
    """On a CPU the compiler counts one memory. Two numbers for each weight go, and what is in flight comes: a piece."""
    (_, plain, _, _), (program, hosted, state, _) = both
    held = sum(leaf.nbytes for leaf, kind in zip(jax.tree.leaves(state), kinds(state), strict=True) if kind == DEVICE)
    assert host_bytes(program.state, "optimizer") == tree_bytes(program.state) - held
    assert held < 0.36 * tree_bytes(program.state)
    temporaries = [step.memory_analysis().temp_size_in_bytes for step in (plain, hosted)]
    assert temporaries[1] < 1.05 * temporaries[0]
    marked = [lies.memory_kind for lies in jax.tree.leaves(hosted.input_shardings[0][0])]
    assert marked == kinds(state)


def test_the_state_is_still_donated(both):
    _, (program, step, _, _) = both
    assert step.memory_analysis().alias_size_in_bytes == tree_bytes(program.state)


def test_a_checkpoint_gives_back_what_lay_where(both, tmp_path):
    _, (program, step, state, _) = both
    Checkpoints(tmp_path, in_background=False).save(20, state, {"at": 1})
    saved, _ = Checkpoints(tmp_path, in_background=False).latest_whole()
    again, position = load_state(saved, program.state)
    assert position == {"at": 1}
    assert kinds(again) == kinds(state)
    assert fingerprint(leaves(again), {}) == fingerprint(leaves(state), {})
    (batch,) = batches(1)
    step(again, batch)  # it takes it


def test_a_checkpoint_of_either_form_continues_in_the_other(both, tmp_path):
    (plain, _, _, _), (_, _, state, _) = both
    Checkpoints(tmp_path, in_background=False).save(20, state, {})
    again, _ = load_state(Checkpoints(tmp_path, in_background=False).latest_whole()[0], plain.state)
    assert fingerprint(leaves(again), {}) == fingerprint(leaves(state), {})


def test_a_mask_still_finds_its_paths():
    """Weight decay leaves norms alone, wherever their moments lie: without a gradient, only what decays moves."""
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("device",))
    host = NamedSharding(mesh, PartitionSpec(), memory_kind=HOST)
    size = 2 * SMALLEST_MOVED
    params = {"norm": {"scale": jnp.ones((2, size))}, "kernel": jnp.ones((2, size)), "small": jnp.ones(3)}
    rule = AdamW(warmup_steps=0, learning_rate=0.5, weight_decay=0.5, clip_norm=None).build(100)
    state = jax.tree.map(lambda x: jax.device_put(x, host) if x.size == 2 * size else x, rule.init(params))
    new, after = jax.jit(rule.apply)(jax.tree.map(jnp.zeros_like, params), state, params)
    assert float(new["norm"]["scale"].min()) == 1
    assert float(new["kernel"].max()) == float(new["small"].max()) == 0.75
    assert jax.tree.structure(after) == jax.tree.structure(state)
    counts = [int(leaf) for leaf in jax.tree.leaves(after) if leaf.ndim == 0]
    assert counts
    assert set(counts) == {1}, "once a step, not once a piece"


def test_an_optimizer_of_which_nobody_says_that_it_can_be_streamed_is_refused():
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("device",))
    params = {"kernel": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    rule = in_place(optax.adam(1e-3))
    state = jax.eval_shape(rule.init, params)
    lies = NamedSharding(mesh, PartitionSpec(), memory_kind=HOST)
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=lies), state)
    with pytest.raises(
        RecipeError, match="--offload optimizer needs an optimizer that can be updated a piece at a time"
    ):
        jax.jit(rule.apply).trace(params, state, params)
