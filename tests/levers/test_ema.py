"""The average of the weights: its values, its bytes, and that it is what is evaluated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from making import made
from plimsoll.levers.ema import Average
from plimsoll.levers.weight_bits import readable
from plimsoll.training.program import compiled, tree_bytes
from plimsoll.training.step import StepSpec, evaluated, make_evaluate, make_init, make_step
from plimsoll.types import WHOLE, Compute, Levers, Storage

DECAY = 0.9


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def weights(step, shape=(96, 64)):
    """A slow drift and a jitter, as those of a model that learns."""
    random = np.random.default_rng(step)
    drift = np.linspace(-1, 1, shape[0] * shape[1]).reshape(shape) * (1 + step / 500)
    return {"kernel": jnp.asarray(drift + random.normal(0, 0.01, shape), jnp.float32), "scale": jnp.ones(5) * step}


def averaged(average, steps):
    after = jax.jit(average.after)
    kept = average.start(weights(0))
    for step in range(1, steps + 1):
        kept = after(kept, weights(step), jnp.int32(step))
    return kept


@pytest.mark.parametrize("decay", [0.01, 0.9999])
def test_it_is_the_sum_that_is_written_down(decay):
    steps = 5
    expected = np.asarray(weights(0)["kernel"], np.float64)
    for step in range(1, steps + 1):
        expected = decay * expected + (1 - decay) * np.asarray(weights(step)["kernel"], np.float64)
    np.testing.assert_allclose(averaged(Average(decay), steps)["kernel"], expected, atol=1e-6)


def test_in_16_bits_it_moves_and_jitters_as_much_as_is_said():
    """Rounded to the nearest, it would not have moved at all."""
    steps, decay = 1500, 0.999
    whole, half = averaged(Average(decay), steps), averaged(Average(decay, 16), steps)
    assert half["kernel"].dtype == jnp.uint16
    np.testing.assert_array_equal(half["scale"], whole["scale"])  # of one axis: kept in float32
    exact = np.asarray(whole["kernel"])
    large = np.abs(exact) > 0.1
    difference = (np.asarray(readable(half)["kernel"], np.float32) - exact)[large]
    step_of_bfloat16 = 2.0 ** (np.floor(np.log2(np.abs(exact[large]))) - 7)
    behind = np.abs(np.asarray(weights(steps)["kernel"]) - exact)[large]
    said = np.sqrt(np.mean(step_of_bfloat16 * (behind / 2 + step_of_bfloat16)))
    assert 0.3 * said < np.sqrt(np.mean(difference**2)) < 1.2 * said
    assert np.abs(np.mean(difference / step_of_bfloat16)) < 0.2


def recipe_with(ema_decay):
    return made("stories", width=64, layers=2, heads=2, vocab_size=2048, seq_len=32, batch_size=4, ema_decay=ema_decay)


def step_of(recipe, storage=WHOLE, **how):
    task, rule = recipe.task(Compute()), recipe.update_rule(100, storage)
    init = jax.jit(make_init(task, rule, **how))
    return init, jax.jit(make_step(task, rule, StepSpec(accumulation=1)), donate_argnums=0)


def next_average(old, new):
    return DECAY * old + (1 - DECAY) * np.asarray(new)


def batch_of(recipe, seed=0):
    random = np.random.default_rng(seed)
    spec = recipe.spec.batch(recipe.effective_batch)
    return {name: random.integers(0, 64, shape).astype(dtype) for name, (shape, dtype) in spec.items()}


@pytest.mark.by_hand  # to the bit only without the options of tests/support/plain_code.py
def test_a_step_leaves_the_weights_alone_and_averages_them():
    (plain, step), (init, averaging) = step_of(recipe_with(0)), step_of(recipe_with(DECAY))
    state, both = plain(np.uint32(1)), init(np.uint32(1))
    expected = jax.tree.map(np.asarray, both["ema"])
    for number in range(3):
        batch = batch_of(recipe_with(0), number)
        state, _ = step(state, batch)
        both, _ = averaging(both, batch)
        expected = jax.tree.map(next_average, expected, both["params"]["trainable"])
    jax.tree.map(np.testing.assert_array_equal, both["params"], state["params"])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), both["ema"], expected)


@pytest.mark.slow
def test_it_is_kept_by_a_step_that_updates_layer_by_layer_too():
    recipe = recipe_with(DECAY)
    task, rule = recipe.task(Compute(levers=Levers(remat="block"))), recipe.update_rule(100)
    init = jax.jit(make_init(task, rule))
    start, found = init(np.uint32(1))["ema"], []
    for passes in (0, 2):
        state, step = init(np.uint32(1)), jax.jit(make_step(task, rule, StepSpec(accumulation=1, layerwise=passes)))
        for number in range(3):
            state, _ = step(state, batch_of(recipe, number))
        found.append(state["ema"])
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), found[1], start)
    assert min(jax.tree.leaves(moved)) > 1e-7
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), *found)


def test_the_average_is_what_is_evaluated():
    recipe = recipe_with(DECAY)
    state = step_of(recipe)[0](np.uint32(1))
    state["ema"] = jax.tree.map(jnp.zeros_like, state["ema"])
    sums = make_evaluate(recipe.task(Compute()))(evaluated(state), batch_of(recipe, 9))["loss"]
    assert sums.total / sums.weight == pytest.approx(
        np.log(recipe.options["vocab_size"])
    )  # of weights that say nothing


def test_a_step_of_float16_that_overflows_leaves_the_average_alone():
    recipe = recipe_with(DECAY)
    task, rule = recipe.task(Compute(levers=Levers(precision="float16"))), recipe.update_rule(100)
    state = jax.jit(make_init(task, rule, precision="float16"))(np.uint32(1))
    state["loss_scale"] = state["loss_scale"]._replace(scale=jnp.float32(2.0**127))
    after, metrics = jax.jit(make_step(task, rule, StepSpec(accumulation=1)))(state, batch_of(recipe))
    assert metrics["skipped_steps"] == 1
    jax.tree.map(np.testing.assert_array_equal, after["ema"], state["ema"])


@pytest.mark.slow_except("storage0")
@pytest.mark.parametrize("storage", [WHOLE, Storage(optimizer_bits=8, weight_bits=24, ema_bits=16)])
def test_it_costs_its_own_bytes_and_no_temporaries(storage):
    plain, averaging = recipe_with(0), recipe_with(DECAY)
    found = {}
    for name, recipe in (("plain", plain), ("averaging", averaging)):
        init, step = step_of(recipe, storage)
        state = jax.eval_shape(init, np.uint32(0))
        stats = compiled(step.lower(state, batch_of(recipe))).memory_analysis()
        found[name] = state, stats
    state, stats = found["averaging"]
    ema = tree_bytes(state["ema"])
    learned = sum(leaf.size for leaf in jax.tree.leaves(state["ema"]))
    assert ema / learned == pytest.approx(4 if storage.ema_bits == 32 else 2, rel=0.01)
    without = found["plain"][1]
    assert stats.argument_size_in_bytes - without.argument_size_in_bytes == ema
    assert stats.alias_size_in_bytes - without.alias_size_in_bytes == ema  # every byte is donated
    assert stats.temp_size_in_bytes - without.temp_size_in_bytes < 0.05 * ema
