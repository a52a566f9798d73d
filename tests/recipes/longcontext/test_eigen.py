"""The model of linear recurrences: a loop over positions, causality, chunks, the unit disc, and bytes."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen_examples import LENGTH, MODELS, SCANNED, SPEC, TINY, VOCAB, hidden_of, parameters, task_of, tokens
from plimsoll.errors import RecipeError
from plimsoll.models.decoder import matrix_keys
from plimsoll.optimizers.settings import decayed
from plimsoll.recipes.longcontext.eigen import FORGETS_WITHIN, Mixer, beginning, eigenvalues
from plimsoll.recipes.longcontext.positions import by_position, stretches
from plimsoll.recipes.longcontext.task import LongTokens
from plimsoll.types import COUNTED, Compute, Levers

STRICT = True


@cache
def loss_of(model, compute=SCANNED):
    task = task_of(model, compute)

    def loss(weights, batch):
        keys = jax.random.split(jax.random.key(0), 2)
        return task.loss({"trainable": weights}, None, batch, keys, train=True)[0].total

    return jax.jit(jax.value_and_grad(loss))


@cache
def mixer_of(model, form="steps"):
    """Of one layer: what it writes; a number made of that, with its gradients for weights and inputs."""
    mixer = Mixer(model, Compute())
    mixer.form = form

    def both(weights, x):
        written, pull = jax.vjp(lambda weights, x: mixer(weights, x)[0], weights, x)
        return written, *pull(jnp.cos(jnp.arange(written.size, dtype=jnp.float32)).reshape(written.shape))

    return jax.jit(both)


@cache
def mixing():
    """Weights of the first layer's mixer, and what it may read."""
    weights = jax.tree.map(lambda leaf: leaf[0], parameters("fixed")["blocks"]["mixer"])
    return weights, jnp.asarray(np.random.default_rng(3).normal(size=(2, LENGTH, TINY.width)), jnp.float32)


def assert_near(one, other, tolerance):
    for (path, a), b in zip(jax.tree_util.tree_flatten_with_path(one)[0], jax.tree.leaves(other), strict=True):
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), jax.tree_util.keystr(path)


def reference_hidden(params, ids):
    """The fixed model once more: NumPy, double precision, a loop over positions."""
    p = jax.tree.map(np.float64, jax.device_get(params))

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    rate, phase = beginning(TINY)
    x = p["embedding"][ids]
    for layer in range(TINY.layers):
        b = jax.tree.map(lambda leaf, layer=layer: leaf[layer], p["blocks"])
        m, h = b["mixer"], norm(x, b["mixer_norm"]["scale"])
        lam = np.exp(-rate * np.exp(m["eigenvalues"]["nu"] / 4) + 1j * (phase + rate * m["eigenvalues"]["theta"] / 4))
        enter = h @ m["enter"]["kernel"]
        beta = np.sqrt(1 - np.abs(lam) ** 2) * (enter[..., : TINY.states] + 1j * enter[..., TINY.states :])
        state, states = np.zeros_like(beta[:, 0]), []
        for t in range(ids.shape[1]):
            state = lam * state + beta[:, t]
            states.append(state)
        c = np.stack(states, axis=1)
        read = np.concatenate([c.real, c.imag], axis=-1) @ m["leave"]["kernel"] + m["skip"]["scale"] * h
        x = x + sigmoid(h @ m["gate"]["kernel"]) * read
        h = norm(x, b["feed_norm"]["scale"])
        gate = h @ b["gate"]["kernel"]
        x = x + (gate * sigmoid(gate) * (h @ b["up"]["kernel"])) @ b["down"]["kernel"]
    return norm(x, p["norm"])


def test_the_model_is_that_of_a_loop_in_double_precision():
    ids = tokens()[:, :-1]
    found = hidden_of(TINY)(parameters("fixed"), ids.astype(np.int32))
    np.testing.assert_allclose(found, reference_hidden(parameters("fixed"), ids), rtol=0, atol=2e-4)


@pytest.mark.parametrize(("form", "chunk"), [("steps", LENGTH), ("matmul", 7)])
def test_forms_and_chunks_change_neither_what_is_written_nor_gradients(form, chunk):
    expected = mixer_of(TINY)(*mixing())
    found = mixer_of(replace(TINY, chunk_size=chunk), form)(*mixing())
    assert_near(found, expected, 2e-4)


@pytest.mark.parametrize("name", ["fixed", "windowed"])
def test_no_position_of_the_model_sees_a_later_token(name):
    ids = tokens()[:, :-1].astype(np.int32)
    changed = ids.copy()
    changed[:, 40] = (changed[:, 40] + 1) % VOCAB
    hidden = hidden_of(MODELS[name])
    moved = np.abs(hidden(parameters(name), ids) - hidden(parameters(name), changed)).max(axis=(0, 2))
    assert np.all(moved[:40] == 0)
    assert np.all(moved[40:] > 1e-4)


@given(
    nu=st.lists(st.floats(allow_nan=False, width=32), min_size=5, max_size=5),
    theta=st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5),
)
def test_an_eigenvalue_never_leaves_the_unit_disc(nu, theta):
    rate, phase = _rates()(np.float32(nu), np.float32(theta))
    size = np.abs(np.exp(-np.asarray(rate) + np.complex64(1j) * np.asarray(phase)))
    assert np.all(size < 1)
    assert np.all(rate >= np.float32(FORGETS_WITHIN[0]) * 0.999)
    assert np.all(np.isfinite(rate))


@cache
def _rates():
    return jax.jit(lambda nu, theta: eigenvalues({"nu": nu, "theta": theta}, TINY))


@pytest.mark.parametrize("nu", [-np.inf, -1e9, 1e9, np.inf])
def test_gradients_are_finite_where_an_eigenvalue_was_driven_to_an_end(nu):
    weights, x = mixing()
    weights = weights | {"eigenvalues": weights["eigenvalues"] | {"nu": jnp.full(5, nu, jnp.float32)}}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(mixer_of(TINY)(weights, x)))


def test_eigenvalues_begin_spread_over_their_ring():
    model = replace(TINY, states=4000, r_min=0.9, r_max=0.999, max_phase=0.5)
    start = {"nu": jnp.zeros(model.states), "theta": jnp.zeros(model.states)}
    rate, phase = (np.asarray(each) for each in eigenvalues(start, model))
    square, (low, high) = np.exp(-2 * rate), (0.9**2, 0.999**2)
    assert low <= square.min() < square.max() <= high + 1e-6
    assert 0 <= phase.min() < phase.max() <= 0.5
    cells, *_ = np.histogram2d(square, phase, bins=10, range=((low, high), (0, 0.5)))
    assert cells.min() >= 35  # 40 of 4,000 in each of 100
    assert cells.max() <= 45


def test_a_step_of_adam_turns_no_state_far_over_the_tokens_that_it_remembers():
    model = replace(TINY, states=64, r_min=0.99, r_max=0.9999)
    many_steps = {"nu": jnp.zeros(64), "theta": jnp.full(64, 100.0)}  # so that single precision shows them
    rate, phase = (np.asarray(each, np.float64) for each in eigenvalues(many_steps, model))
    turned = (phase - beginning(model)[1]) / rate
    assert turned == pytest.approx(25.0, abs=0.01)  # a quarter, of what is forgotten at a token


HALF = {"activations": "bfloat16"}


@pytest.mark.parametrize("further", [{}, HALF], ids=["products", "activations"])
def test_states_stay_in_single_precision_under_bfloat16_and_the_loss_is_near(further):
    batch, compute = (
        {"tokens": tokens()},
        replace(SCANNED, levers=Levers(SCANNED.levers | {"precision": "bfloat16"} | further)),
    )
    exact = loss_of(TINY)(parameters("fixed"), batch)
    rounded = loss_of(TINY, compute)(parameters("fixed"), batch)
    assert rounded[0] == pytest.approx(float(exact[0]), rel=0.01)
    assert rounded[0].dtype == jnp.float32
    assert_near(rounded[1]["embedding"], exact[1]["embedding"], 0.1)
    task = task_of(TINY, compute)
    trace = jax.make_jaxpr(lambda p, x: task.decoder.hidden(p, x))(parameters("fixed"), tokens()[:, :-1].astype("i4"))
    assert "c64" in str(trace)
    assert "bf16" in str(trace)


def test_states_stay_in_single_precision_under_bfloat16_activations_and_remember_as_long():
    """A state that keeps 0.9999 of itself would keep all of it in bfloat16, and sum up thousands of tokens."""
    model = replace(TINY, r_min=0.9999, r_max=0.99995)
    compute = Compute(levers=Levers(precision="bfloat16", **HALF))
    mixer = Mixer(model, compute)
    weights = mixer.init(matrix_keys(jax.random.key(0)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2048, model.width)), jnp.bfloat16)
    mix = jax.jit(mixer)
    (written, states), (wide, expected) = mix(weights, x), mix(weights, jnp.float32(x))
    assert (written.dtype, states.dtype, wide.dtype) == (jnp.bfloat16, jnp.complex64, jnp.float32)
    assert_near(states, expected, 0.01)
    assert_near(jnp.float32(written), wide, 0.02)


def test_eigenvalues_are_not_decayed_and_matrices_are():
    mask = decayed(parameters("fixed"))["blocks"]["mixer"]
    assert mask["eigenvalues"] == {"nu": False, "theta": False}
    assert mask["skip"] == {"scale": False}
    assert all(mask[name] == {"kernel": True} for name in ("enter", "leave", "gate"))


def test_the_loss_by_position_adds_up_to_the_loss():
    task, batch = task_of(TINY, Compute(levers=Levers(remat="block", loss_chunk=16))), {"tokens": tokens()}

    @jax.jit
    def evaluated(weights, batch):
        keys = jax.random.split(jax.random.key(0), 2)
        loss, _, metrics = task.loss({"trainable": weights}, None, batch, keys, train=False)
        return loss, metrics

    whole = float(loss_of(TINY)(parameters("fixed"), batch)[0])
    loss, metrics = evaluated(parameters("fixed"), batch | {COUNTED: np.array([True, True])})
    assert float(loss.total) == pytest.approx(whole, rel=1e-6)
    assert sum(float(part.total) for part in metrics.values()) == pytest.approx(whole, rel=1e-6)
    assert set(metrics) == set(stretches(LENGTH))
    assert sum(float(part.weight) for part in metrics.values()) == 2 * LENGTH
    halves = [
        evaluated(parameters("fixed"), batch | {COUNTED: np.array(rows)}) for rows in ([True, False], [False, True])
    ]
    assert [float(half[0].weight) for half in halves] == [LENGTH, LENGTH]
    for name, part in metrics.items():
        assert sum(float(half[1][name].total) for half in halves) == pytest.approx(float(part.total), rel=1e-5)


@pytest.mark.parametrize("length", [1, 2, 67, 128, 2048, 32768])
def test_stretches_lie_side_by_side(length):
    found = list(stretches(length).values())
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == length
    assert len(found) <= 13
    metrics = {name: float(start) for name, (start, _) in stretches(length).items()}
    assert list(by_position(metrics, length).values()) == [float(start) for start, _ in found]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"states": 0}, "--states must be 1 or more, got 0"),
        ({"chunk_size": 0}, "--chunk-size must be 1 or more, got 0"),
        ({"width": 0}, "--width must be 1 or more, got 0"),
        ({"r_max": 1.0}, "--r-max must be 0 or more and below 1, got 1"),
        ({"r_min": 0.99, "r_max": 0.9}, "--r-min 0.99 and --r-max 0.9"),
        ({"max_phase": 7.0}, "--max-phase must be above 0 and at most 6.28"),
        ({"attention_every": 3}, "no whole number of groups of --attention-every 3: take 3 layers"),
        ({"attention_window": 8}, "there are none: give --attention-every"),
        ({"heads": 2}, "there are none: give --attention-every"),
    ],
)
def test_sizes_that_contradict_one_another_are_refused(fields, words):
    with pytest.raises(RecipeError) as refused:
        replace(TINY, **fields)
    assert words in str(refused.value)


@cache
def temporaries(length, vocab=256, chunk=64):
    """It is never run."""
    compute = Compute(levers=Levers(remat="block", loss_chunk=chunk))
    task = LongTokens(replace(TINY, chunk_size=256), replace(SPEC, vocab=vocab), compute)

    def loss(weights, batch, keys):
        return task.loss({"trainable": weights}, None, batch, keys, train=True)[0].total

    weights = jax.eval_shape(task.init, jax.eval_shape(lambda: jax.random.key(0)))["trainable"]
    batch = {"tokens": jax.ShapeDtypeStruct((1, length + 1), "uint16")}
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    return jax.jit(jax.grad(loss)).lower(weights, batch, keys).compile().memory_analysis().temp_size_in_bytes


@pytest.fixture(scope="module")
def by_length():
    return [temporaries(length) for length in (2048, 4096, 8192)]


def test_memory_grows_with_the_length_and_not_with_its_square(by_length):
    short, middle, long = by_length
    assert (long - middle) / 4096 == pytest.approx((middle - short) / 2048, rel=0.05)


def test_there_are_no_logits_of_all_tokens():
    """Of 4,096 tokens over 2,304 ids they would be 36 MiB, and so much more is needed where they are made."""
    logits = 4 * 4096 * 2304
    in_chunks = temporaries(4096, vocab=2304)
    assert in_chunks - temporaries(4096) < logits / 8
    assert temporaries(4096, vocab=2304, chunk=0) - in_chunks > logits
