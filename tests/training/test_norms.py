"""With --log-norms layers a step reports the norm of each layer and of each other part, and changes nothing else."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.levers.lora import LoRA
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.optimizers.adamw import AdamW
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Compute, Levers
from small_tasks import LinearRegression, regression_batch, text_batch

SHAPE = DecoderShape(vocab=64, width=32, layers=3, heads=2, inner=64)
PLAIN = {"loss", "weight", "gradient_norm"}


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


class InAList(LinearRegression):
    """Layers in a list, beside a part that is none."""

    def init(self, key):
        return {"trainable": {"layers": [jnp.eye(3), 2 * jnp.eye(3)], "slope": jnp.ones(3)}}

    def loss(self, params, carry, batch, keys, *, train):
        one, two = params["trainable"]["layers"]
        weights = {"slope": one @ two @ params["trainable"]["slope"], "bias": jnp.zeros(())}
        scale = {"frozen": {"scale": jnp.ones(())}}
        return super().loss({"trainable": weights} | scale, carry, batch, keys, train=train)


def decoder(**levers):
    return NextToken(SHAPE, Compute(levers=Levers(**levers)))


def norm(*leaves):
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in leaves))


def by_hand(gradient, layers="blocks"):
    """Norms of a gradient whose entries are parts, one of them with layers: a list of them, or one stack."""
    whole = gradient[layers]
    if not isinstance(whole, list):
        whole = [jax.tree.map(lambda leaf, at=at: leaf[at], whole) for at in range(SHAPE.layers)]
    norms = {f"gradient_norm/{layers}/{at}": norm(*jax.tree.leaves(layer)) for at, layer in enumerate(whole)}
    others = {name: norm(*jax.tree.leaves(part)) for name, part in gradient.items() if name != layers}
    return norms | {f"gradient_norm/{name}": value for name, value in others.items()}


def gradient_of(task, params, batch):
    """The gradient of the mean loss, of the whole batch at once and without a step."""
    keys = jax.vmap(jax.random.key)(jnp.zeros(16, jnp.uint32))

    def mean(trainable):
        loss = task.loss(params | {"trainable": trainable}, None, batch, keys, train=True)[0]
        return loss.total / loss.weight

    return jax.device_get(jax.jit(jax.grad(mean))(params["trainable"]))


@cache
def start(make_task):
    task = make_task()
    return jax.jit(make_init(task, optax.sgd(0.1)))(np.uint32(3))


def reported(task, optimizer, batch, state, **spec):
    """The numbers that a step reports."""
    step = jax.jit(make_step(task, optimizer, StepSpec(**({"accumulation": 1} | spec))))
    return {name: float(value) for name, value in step(state, batch)[1].items() if not isinstance(value, tuple)}


@pytest.mark.parametrize(
    ("levers", "accumulation"),
    [({"unroll": 0, "remat": "block"}, 1), ({"unroll": 8}, 4)],
    ids=["stacked, at once", "unrolled, in micro-batches"],
)
def test_norms_of_stacked_layers_are_those_of_the_whole_batchs_gradient(levers, accumulation):
    task, batch, state = decoder(**levers), text_batch(), start(decoder)
    assert bool(task.unrolled) == (accumulation == 4)
    found = reported(task, optax.sgd(0.1), batch, state, norms="layers", accumulation=accumulation)
    expected = by_hand(gradient_of(decoder(), state["params"], batch))
    assert {name: found[name] for name in found.keys() - PLAIN} == pytest.approx(expected, rel=1e-5)
    assert found["gradient_norm"] == pytest.approx(norm(*expected.values()), rel=1e-6)


def test_without_it_there_are_none_and_everything_else_is_the_same():
    task, batch, state = decoder(), text_batch(), start(decoder)
    plain, told = (reported(task, optax.sgd(0.1), batch, state, norms=norms) for norms in ("global", "layers"))
    assert plain.keys() == PLAIN
    assert plain == pytest.approx({name: told[name] for name in PLAIN}, rel=1e-6)


def test_layers_in_a_list_have_a_norm_each():
    task, batch = InAList(), regression_batch()
    state = start(InAList)
    found = reported(task, optax.sgd(0.1), batch, state, norms="layers", accumulation=2)
    expected = by_hand(gradient_of(task, state["params"], batch), "layers")
    assert expected.keys() == {"gradient_norm/layers/0", "gradient_norm/layers/1", "gradient_norm/slope"}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert found["gradient_norm"] == pytest.approx(norm(*expected.values()), rel=1e-6)


@pytest.mark.slow
def test_adapters_are_summed_by_the_layer_they_stand_in():
    """Their entries are named by the paths of kernels."""
    task, batch = LoRA(decoder(), "all-linear", rank=2), text_batch()
    state = jax.jit(make_init(task, optax.sgd(0.1)))(np.uint32(3))
    found = reported(task, optax.sgd(0.1), batch, state, norms="layers")
    adapters = gradient_of(task, state["params"], batch)
    expected = by_hand({"blocks": adapters})
    assert {name: found[name] for name in found.keys() - PLAIN} == pytest.approx(expected, rel=1e-5)
    assert len(expected) == SHAPE.layers


@pytest.mark.slow_cases("None-1")
@pytest.mark.parametrize(("clip_norm", "passes"), [(None, 1), (0.5, 2)])
def test_layer_by_layer_they_are_those_of_the_whole_gradient(clip_norm, passes):
    """Before the clip."""
    task, batch = decoder(remat="block"), text_batch()
    rule = AdamW(warmup_steps=2, clip_norm=clip_norm).rule(10)
    state = jax.jit(make_init(task, rule))(np.uint32(3))
    found = reported(task, rule, batch, state, norms="layers", layerwise=passes)
    expected = by_hand(gradient_of(task, state["params"], batch))
    assert {name: found[name] for name in found.keys() - PLAIN} == pytest.approx(expected, rel=1e-5)
    assert found["gradient_norm"] == pytest.approx(norm(*expected.values()), rel=1e-6)
    assert clip_norm is None or found["gradient_norm"] > clip_norm
