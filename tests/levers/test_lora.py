"""LoRA begins as the frozen model, learns nothing but its factors, and holds nothing for the rest."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plimsoll.errors import RecipeError
from plimsoll.levers.frozen import Packed, packed, widened
from plimsoll.levers.lora import Adapted, LoRA, linear
from plimsoll.levers.precision import Form
from plimsoll.models.language import NextToken
from plimsoll.models.shape import DecoderShape
from plimsoll.training.program import tree_bytes
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Compute, Levers

SHAPE = DecoderShape(vocab=128, width=64, layers=2, heads=2, inner=128, tied=True)
PLAIN = Form("float32", "cpu")
ATTENTION = "q,v"


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def base(remat="none"):
    return NextToken(SHAPE, Compute(levers=Levers(remat=remat)))


def batch(examples=4):
    ids = np.random.default_rng(0).integers(0, 128, (examples, 17)).astype(np.int32)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def loss_of(task, params):
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    return task.loss(params, None, batch(), keys, train=True)[0].total


@pytest.mark.slow_except("none-8")
@pytest.mark.parametrize(("remat", "bits"), [("none", 8), ("block", 4)])
def test_only_the_factors_are_learned_and_the_frozen_weights_take_so_many_bits(bits, remat):
    task, optimizer = LoRA(base(remat), ATTENTION, rank=4), optax.adam(1e-2)
    state = jax.jit(make_init(task, optimizer, frozen_bits=bits))(np.uint32(0))
    step = jax.jit(make_step(task, optimizer, StepSpec(accumulation=2)))
    frozen = jax.device_get(state["params"]["frozen"])
    losses = []
    for _ in range(20):
        state, metrics = step(state, batch())
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state["params"]["frozen"]), frozen)
    learned = tree_bytes(state["params"]["trainable"])
    assert learned == 4 * 2 * 2 * (64 * 4 + 4 * 64)
    assert tree_bytes(state["optimizer"]) == 2 * learned + 4  # two moments of the factors, and the count


def test_the_gradient_is_that_of_the_factors_in_the_merged_weights():
    task = LoRA(base(), ATTENTION, rank=4, alpha=8.0)
    params = jax.jit(task.init)(jax.random.key(1))
    factors = jax.tree.map(lambda leaf: leaf + 0.01, params["trainable"])
    frozen = params["frozen"]["base"]

    def merged(factors):
        def one(name, leaf):
            pair = factors.get(f"blocks/{name}/kernel")
            return leaf if pair is None else leaf + 2.0 * pair["a"] @ pair["b"]

        blocks = frozen["blocks"]
        changed = {name: blocks[name] | {"kernel": one(name, blocks[name]["kernel"])} for name in ("query", "value")}
        return frozen | {"blocks": blocks | changed}

    ours = jax.jit(jax.grad(lambda factors: loss_of(task, params | {"trainable": factors})))(factors)
    plain = jax.jit(jax.grad(lambda factors: loss_of(base(), {"trainable": merged(factors)})))(factors)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, plain)


def test_what_matches_nothing_or_no_kernel_is_refused_with_the_names():
    with pytest.raises(RecipeError, match="blocks/query/kernel"):
        LoRA(base(), "nothing", rank=2).init(jax.random.key(0))
    with pytest.raises(RecipeError, match="at most 64"):
        LoRA(base(), ATTENTION, rank=100).init(jax.random.key(0))
    with pytest.raises(RecipeError, match="1 or more"):
        LoRA(base(), ATTENTION, rank=0)


KERNEL = jnp.asarray(np.random.default_rng(1).standard_normal((64, 32), np.float32))


def adapter(dropout=0.0, examples=2):
    random = np.random.default_rng(2)
    a, b = (jnp.asarray(random.standard_normal(sides, np.float32)) for sides in ((64, 4), (4, 32)))
    keys = jnp.arange(examples, dtype=jnp.uint32) if dropout else None
    return Adapted(packed(KERNEL, 4), a, b, 0.5, dropout, keys)


def rows(examples=2, length=8):
    return jnp.asarray(np.random.default_rng(3).standard_normal((examples, length, 64), np.float32))


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_the_derivative_of_an_adapted_product_is_that_of_the_plain_one(dropout):
    adapted, x = adapter(dropout), rows()
    wide = widened(adapted.base)
    # What is dropped is seen with one-hot factors: of zeros and 1 / (1 - share) alone.
    shown = replace(adapted, base=jnp.zeros((64, 64)), a=jnp.eye(64), b=jnp.eye(64), scale=1.0)
    mask = linear(jnp.ones_like(x), shown, PLAIN)
    assert set(np.unique(mask).tolist()) == ({0.0, np.float32(1 / 0.75)} if dropout else {1.0})

    def plain(x, a, b):
        return jnp.sum(jnp.sin(x @ wide + 0.5 * ((mask * x) @ a) @ b))

    def ours(x, a, b):
        return jnp.sum(jnp.sin(linear(x, replace(adapted, a=a, b=b), PLAIN)))

    expected = jax.jit(jax.value_and_grad(plain, argnums=(0, 1, 2)))(x, adapted.a, adapted.b)
    found = jax.jit(jax.value_and_grad(ours, argnums=(0, 1, 2)))(x, adapted.a, adapted.b)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


def test_the_backward_pass_keeps_the_input_and_nothing_else_that_is_as_long(capsys):
    x = rows(2, 256)
    jax.ad_checkpoint.print_saved_residuals(lambda x, a: linear(x, replace(adapter(0.25), a=a), PLAIN), x, adapter().a)
    kept = [line for line in capsys.readouterr().out.splitlines() if "512" in line or "256" in line]
    assert any("f32[512,64]" in line or "f32[2,256,64]" in line for line in kept)
    assert all("[512,64]" in line or "[2,256,64]" in line or "u32[512]" in line for line in kept), kept


def test_a_share_is_dropped_anew_of_every_example_layer_and_kernel_and_nothing_in_an_evaluation():
    task = LoRA(base(), ATTENTION, rank=4, dropout=0.25)
    params = jax.jit(task.init)(jax.random.key(0))
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    blocks = task.adapted(params, keys)["blocks"]
    drawn = np.stack([blocks[name]["kernel"].keys for name in ("query", "value")])
    assert drawn.shape == (2, SHAPE.layers, 3)
    assert len(np.unique(drawn)) == drawn.size
    assert task.adapted(params)["blocks"]["query"]["kernel"].keys is None
    shown = Adapted(jnp.zeros((64, 64)), jnp.eye(64), jnp.eye(64), 1.0, 0.25, jnp.asarray(drawn[0, 0]))
    mask = np.asarray(linear(jnp.ones((3, 500, 64)), shown, PLAIN))
    assert np.mean(mask == 0) == pytest.approx(0.25, abs=0.01)


def test_scales_and_initial_values_are_pefts():
    assert LoRA(base(), ATTENTION, rank=16, alpha=8).scale == 0.5
    assert LoRA(base(), ATTENTION, rank=16, alpha=8, rslora=True).scale == 2
    learned = jax.jit(LoRA(base(), "q,down", rank=4).init)(jax.random.key(0))["trainable"]
    assert set(learned) == {"blocks/query/kernel", "blocks/down/kernel"}
    for name, inner in (("query", 64), ("down", 128)):
        a = learned[f"blocks/{name}/kernel"]["a"]
        assert a.shape == (2, inner, 4)
        assert 0.9 * inner**-0.5 < jnp.abs(a).max() <= inner**-0.5  # torch's kaiming_uniform_ with a = sqrt(5)
        assert not learned[f"blocks/{name}/kernel"]["b"].any()


EVERY = {"query", "key", "value", "out", "gate", "up", "down"}


@pytest.mark.parametrize(
    ("targets", "kernels"),
    [("q,v", {"query", "value"}), ("all-linear", EVERY), (" o", {"out"}),
     (r"blocks/(up|down)/.*", {"up", "down"}), ("q, gate", {"query", "gate"})],
)  # fmt: skip
def test_targets_are_short_names_all_kernels_or_a_pattern(targets, kernels):
    weights = jax.eval_shape(base().init, jax.random.key(0))["trainable"]
    found = LoRA(base(), targets, rank=2).adapted_shapes(weights)
    assert set(found) == {f"blocks/{name}/kernel" for name in kernels}


def test_qloras_loss_is_that_of_the_dequantised_base():
    """To 1e-6, and so are the gradients of the factors."""
    task = LoRA(base("block"), "q,v,down", rank=4)
    params = jax.jit(task.init)(jax.random.key(0))
    learned = jax.tree.map(lambda leaf: leaf + 0.01, params["trainable"])
    few = params | {"frozen": task.stored(params["frozen"], 4)}
    wide = jax.tree.map(widened, few["frozen"], is_leaf=lambda leaf: isinstance(leaf, Packed))
    gradients = jax.jit(jax.value_and_grad(lambda learned, params: loss_of(task, params | {"trainable": learned})))
    found, expected = gradients(learned, few), gradients(learned, few | {"frozen": wide})
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found[1], expected[1])
