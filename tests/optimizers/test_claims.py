"""Every optimizer: the levers that it claims save bytes and change no number, and it has no more than it claims."""

from dataclasses import fields
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plimsoll
from hypotheses import examples
from plimsoll.errors import RecipeError
from plimsoll.levers.offload import DEVICE, HOST
from plimsoll.levers.records.layerwise import OPTIMIZERS
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.adam_atan2 import AdamATan2
from plimsoll.optimizers.adamw import AdamW
from plimsoll.optimizers.foreign import OfLength, Optax, optimizer_of
from plimsoll.optimizers.in_place import in_place
from plimsoll.optimizers.lion import Lion
from plimsoll.optimizers.muon import Muon
from plimsoll.optimizers.settings import Decay, Optimizer
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Compute, Levers

ALL = [AdamW, Muon, Lion, AdamATan2]
SHAPE = DecoderShape(vocab=128, width=64, layers=4, heads=2, inner=128, tied=True)
BLOCKS = Compute(levers=Levers(remat="block", loss_chunk=32))
LARGE = {"kernel": (512, 1024), "bias": (1024,)}
STATE_BYTES = {AdamW: 8, Muon: 4, Lion: 4, AdamATan2: 8}
"""Bytes of state for each weight of a matrix."""


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def claiming(lever):
    return [kind for kind in ALL if lever in kind.levers]


def made(kind):
    """Epsilon well above rounding, where there is one: else near-zero gradients would test noise."""
    options = {"epsilon": 1e-5} if kind is AdamW else {}
    return kind(learning_rate=1e-3, warmup_steps=2, **options)


def drawn(seed):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in LARGE.items()}


@pytest.mark.parametrize("kind", ALL)
def test_a_weight_of_a_matrix_takes_the_bytes_of_state_that_the_page_says(kind):
    matrix = {"kernel": jax.ShapeDtypeStruct((4, 64, 256), jnp.float32)}
    state = jax.eval_shape(made(kind).rule(100).init, matrix)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert held == pytest.approx(STATE_BYTES[kind] * matrix["kernel"].size, rel=1e-3)


def planned(kind, **pins):
    """The plan of a loss over LARGE, for a card, whose peak is the step's and not that of loading programs."""
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in LARGE.items()}
    return plimsoll.plan(
        lambda params, batch: (jnp.sum(jnp.square(batch @ params["kernel"] + params["bias"])), len(batch)),
        shapes,
        jax.ShapeDtypeStruct((8, 512), jnp.float32),
        optimizer=made(kind),
        steps=10,
        memory="1GiB",
        chip="h100",
        pins={"micro_batch": 8} | pins,
    )


@pytest.mark.parametrize("kind", [Muon, Lion])
def test_a_plan_predicts_the_bytes_of_the_state(kind):
    state = made(kind).rule(10).init(jax.tree.map(jnp.asarray, drawn(0)))
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert planned(kind).ledger.components["optimizer"] == pytest.approx(held, rel=1e-3)


@pytest.mark.parametrize("kind", [Muon, Lion])
@pytest.mark.parametrize("lever", ["optimizer_bits", "weight_bits"])
def test_fewer_bits_are_refused_where_the_rule_has_no_such_form(kind, lever):
    with pytest.raises(RecipeError, match=r"would change nothing: the optimizer of .* makes no use of that lever"):
        planned(kind, **{lever: 16})


# Layer by layer


def batch(seed):
    ids = np.random.default_rng(seed).integers(0, SHAPE.vocab, (4, 17)).astype(np.int32)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def step_of(optimizer, *, layerwise):
    task, rule = NextToken(SHAPE, BLOCKS), optimizer.rule(8)
    state = jax.jit(make_init(task, rule))(np.uint32(3))
    step = jax.jit(make_step(task, rule, StepSpec(accumulation=1, layerwise=layerwise)), donate_argnums=0)
    compiled = step.lower(state, batch(0)).compile()
    stats = compiled.memory_analysis()
    return compiled, state, stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


@pytest.mark.slow_cases("AdamW", "AdamATan2")
@pytest.mark.parametrize("kind", claiming("layerwise"), ids=lambda kind: kind.__name__)
def test_layer_by_layer_the_numbers_are_the_same_and_the_bytes_fewer(kind):
    optimizer = made(kind)
    passes = 2 if optimizer.needs_norm else 1
    whole, state_of_whole, bytes_of_whole = step_of(optimizer, layerwise=0)
    layered, state, bytes_of_layered = step_of(optimizer, layerwise=passes)
    for seed in range(3):
        state_of_whole, _ = whole(state_of_whole, batch(seed))
        state, _ = layered(state, batch(seed))

    # Lion's steps are signs: where a momentum is zero but for rounding, two ways of summing may disagree.
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(state_of_whole), strict=True):
        close = np.isclose(one, other, rtol=1e-4, atol=1e-6)
        assert np.mean(close) > 0.999
    assert bytes_of_layered < bytes_of_whole


@pytest.mark.parametrize("kind", ALL)
def test_only_who_claims_it_has_updates_of_parts(kind):
    has_parts = in_place(made(kind).rule(8)).parts is not None
    assert has_parts == ("layerwise" in kind.levers)


def test_a_refusal_of_layer_by_layer_names_who_claims_it():
    named = {kind for kind in ALL if kind.__name__ in OPTIMIZERS}
    assert named == {*claiming("layerwise")}


# On the host


def on(kind_of_memory, tree):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind_of_memory)
    return jax.tree.map(lambda leaf: jax.device_put(leaf, place) if leaf.size > 1024 else leaf, tree)


def updated(kind, *, memory):
    rule, params = made(kind).rule(8), jax.tree.map(jnp.asarray, drawn(0))
    state = on(memory, rule.init(params))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, (params, state))
    apply = jax.jit(in_place(rule).apply, out_shardings=shardings)
    for seed in range(1, 4):
        params, state = apply(drawn(seed), state, params)
    return params, state


@pytest.mark.parametrize("kind", claiming("offload"), ids=lambda kind: kind.__name__)
def test_a_state_on_the_host_is_updated_to_the_same_numbers(kind):
    device, _ = updated(kind, memory=DEVICE)
    host, state = updated(kind, memory=HOST)
    assert HOST in {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)}
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), host, device)


@pytest.mark.parametrize("kind", [kind for kind in ALL if "offload" not in kind.levers])
def test_a_state_on_the_host_is_refused_by_who_does_not_claim_it(kind):
    with pytest.raises(RecipeError, match="--offload optimizer needs an optimizer that can be updated a piece"):
        updated(kind, memory=HOST)


# Rates


@settings(max_examples=examples(40))
@given(
    kind=st.sampled_from(ALL),
    decay=st.sampled_from(get_args(Decay)),
    warmup=st.integers(0, 30),
    final=st.sampled_from([0.0, 0.1, 1.0]),
    share=st.sampled_from([0.05, 0.2, 1.0]),
    steps=st.integers(1, 60),
    more=st.integers(0, 60),
    taken=st.floats(0, 1),
)
def test_a_beginning_is_called_the_same_exactly_where_every_rate_is(
    kind, decay, warmup, final, share, steps, more, taken
):
    optimizer = kind(learning_rate=1.0, warmup_steps=warmup, decay=decay, final_fraction=final, decay_fraction=share)
    taken = round(taken * steps)
    counts = np.arange(taken)
    short, long = (np.array([optimizer.schedule(total)(count) for count in counts]) for total in (steps, steps + more))
    same = np.allclose(short, long, rtol=1e-5, atol=1e-7)
    other_warmup = optimizer.corners(steps).peak != optimizer.corners(steps + more).peak
    if optimizer.same_beginning(steps, steps + more, taken=taken):
        assert same
    else:
        assert other_warmup or not same


COURSES = {"cosine": (0.55, 0.1), "linear": (0.55, 0.1), "wsd": (1, 0.1), "constant": (1, 1)}
"""Shares of the peak, by decay: halfway from the peak to the end, and at the end."""


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("decay", get_args(Decay))
def test_every_decay_ends_where_it_says(kind, decay):
    half, last = COURSES[decay]
    rate = kind(learning_rate=1.0, warmup_steps=10, decay=decay).schedule(110)
    first = 0 if kind.rises_from_zero else 1
    assert float(rate(10 - first)) == pytest.approx(1)
    assert float(rate(60 - first)) == pytest.approx(half, rel=1e-5)
    assert float(rate(110 - first)) == pytest.approx(last, rel=1e-5)
    assert float(rate(99 - first)) == pytest.approx(0.55 if decay == "wsd" else float(rate(99 - first)), rel=1e-5)
    assert all(rate(count) >= rate(count + 1) for count in range(10, 110))
    assert 0 <= float(rate(0)) < 0.11, "asked with Python's own number"


# What is not ours


def test_any_transformation_and_any_function_of_the_steps_is_an_optimizer():
    assert optimizer_of(Muon()) == Muon()
    given = optax.sgd(1e-3)
    assert optimizer_of(given) == Optax(given)
    assert optimizer_of(given).same_beginning(10, 20, taken=10)
    by_length = optimizer_of(lambda steps: Lion(warmup_steps=steps // 10))
    assert isinstance(by_length, OfLength)
    assert (by_length.levers, by_length.needs_norm) == (Lion.levers, True)
    assert by_length.schedule(100)(0) == 0
    assert not by_length.same_beginning(100, 200, taken=1)
    assert not optimizer_of(lambda steps: optax.sgd(1 / steps)).same_beginning(10, 20, taken=10)
    with pytest.raises(RecipeError, match=r"adamw itself, .* call it, like adamw\(1e-3\)"):
        optimizer_of(optax.adamw)


def test_one_of_a_users_own_is_one_method():
    class Sgd(Optimizer):
        def rule(self, steps, storage=None):
            return optax.sgd(0.1)

    assert optimizer_of(Sgd()).rule(5).update({"w": 1.0}, optax.sgd(0.1).init({"w": 1.0}))[0] == {"w": -0.1}
    assert Sgd().schedule(5) is None
    assert [field.name for field in fields(Sgd)] == [field.name for field in fields(Optimizer)]
