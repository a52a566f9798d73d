"""A state on the host is updated to the same numbers, and the device never holds all of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core as jex
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

import plimsoll
from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.frozen import frozen_dot
from plimsoll.levers.lora import LoRA
from plimsoll.levers.offload import (
    DEVICE,
    HOST,
    SMALLEST_MOVED,
    memory_kinds,
    movable_bytes,
    on_host,
    over_host_pieces,
    placed,
)
from plimsoll.levers.sharding import with_shardings
from plimsoll.optimizers.in_place import in_place
from plimsoll.planned import Plan
from plimsoll.planner.liveness import kept_on_host_bytes, temporary_bytes
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registry import preset
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.fingerprint import fingerprint
from plimsoll.training.program import Functions, compiled, tree_bytes
from plimsoll.training.step import StepSpec, evaluated, make_init, make_step
from plimsoll.types import Compute, Levers, StepOptions

RECIPE = preset("stories").replace(
    width=128, layers=3, heads=4, vocab_size=300, seq_len=32, batch_size=4, warmup_steps=2, ema_decay=0.9
)
PLAN = Plan(
    chip="cpu",
    accumulation=2,
    levers=Levers(micro_batch=2, remat="block", loss_chunk=0, precision="float32", prefetch=0, async_save=False),
)
"""On a CPU the search refuses the lever; JAX has the memory kinds there, so that what it does can be seen."""
HOSTED = PLAN.with_levers(offload="optimizer")


@pytest.fixture(autouse=True, scope="module")  # the trainings below are of a module, too
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def lowered(plan, recipe=RECIPE):
    return Functions(
        recipe.task(plan.compute("cpu")),
        recipe.update_rule(20),
        plan,
        StepOptions(),
    ).program(
        batch=recipe.spec.batch(recipe.effective_batch),
        evaluation_batch=recipe.spec.batch(plan.micro_batch),
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
            name: random.integers(0, 300, shape).astype(dtype) for name, (shape, dtype) in RECIPE.spec.batch(4).items()
        }


def trained(plan, steps, recipe=RECIPE):
    program = lowered(plan, recipe)
    step, state, losses = compiled(program.step), compiled(program.init)(np.uint32(0)), []
    for batch in batches(steps):
        state, metrics = step(state, batch)
        losses.append(np.asarray(metrics["loss"]))
    return program, step, state, losses


@pytest.fixture(scope="module")
def both():
    return trained(PLAN, 8), trained(HOSTED, 8)


@pytest.mark.slow
def test_steps_with_the_state_on_the_host_are_those_on_the_device(both):
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
    movable = movable_bytes(program.state)
    assert movable["optimizer"] > 1.5 * movable["ema"] > 0
    batch = {name: values[: PLAN.micro_batch] for name, values in next(batches(1)).items()}
    here, there = (evaluate_of(one, batch) for one in both)
    assert there == pytest.approx(here, rel=1e-6)


def evaluate_of(trained, batch):
    program, _, state, _ = trained
    return compiled(program.evaluate)(evaluated(state), batch)["loss"].total.item()


@pytest.mark.parametrize(
    ("rows", "inner", "piece", "hosted"),
    [
        (1, (), 5, True),
        (7, (3,), 3, True),
        (64, (2, 5), 40, True),
        (70, (3,), 33, True),
        (70, (), 80, True),
        (9, (3,), 6, False),
    ],
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
    assert kinds(state) == jax.tree.leaves(wanted), "after some steps as before the first"
    for path, kind in jax.tree_util.tree_flatten_with_path(wanted)[0]:
        assert kind == DEVICE or path[0].key in ("optimizer", "ema")
    small = [leaf.size for leaf, kind in zip(jax.tree.leaves(state), kinds(state), strict=True) if kind == DEVICE]
    assert min(small) == 1, "counts are not worth moving"
    assert set(jax.tree.leaves(memory_kinds(program.state, "none"))) == {DEVICE}


def test_the_device_holds_fewer_bytes_by_the_kinds_of_memory_of_the_compiled_step(both):
    """On a CPU the compiler counts one memory. Two numbers for each weight go, and what is in flight comes: a piece."""
    (_, plain, _, _), (program, hosted, state, _) = both
    held = sum(leaf.nbytes for leaf, kind in zip(jax.tree.leaves(state), kinds(state), strict=True) if kind == DEVICE)
    movable = movable_bytes(program.state)
    assert movable["optimizer"] + movable["ema"] == tree_bytes(program.state) - held
    assert held < 0.36 * tree_bytes(program.state)
    temporaries = [step.memory_analysis().temp_size_in_bytes for step in (plain, hosted)]
    assert temporaries[1] < 1.05 * temporaries[0]
    marked = [lies.memory_kind for lies in jax.tree.leaves(hosted.input_shardings[0][0])]
    assert marked == kinds(state)
    assert hosted.memory_analysis().alias_size_in_bytes == tree_bytes(program.state), "the state is still donated"


def test_a_checkpoint_gives_back_what_lay_where(both, tmp_path):
    _, (program, step, state, _) = both
    Checkpoints(RunFolder(tmp_path), in_background=False).save(20, state, {"at": 1})
    loaded, _ = Checkpoints(RunFolder(tmp_path), in_background=False).newest(program.state)
    again, position = loaded.state, loaded.position.loader
    assert position == {"at": 1}
    assert kinds(again) == kinds(state)
    assert fingerprint(leaves(again), {}) == fingerprint(leaves(state), {})
    (batch,) = batches(1)
    step(again, batch)  # it takes it


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


class Adapted(Recipe):
    """What was learned is frozen, and thin matrices beside two of its kernels are learned."""

    def task(self, compute):
        return LoRA(super().task(compute), "q,v", rank=4)


ADAPTED = Adapted(**RECIPE.parts)


PLAN_OF_FROZEN = PLAN.with_levers(remat="block", frozen_bits=4)


@pytest.fixture(scope="module")
def frozen_on_the_host():
    return trained(PLAN_OF_FROZEN.with_levers(offload="frozen"), 4, ADAPTED)


@pytest.mark.slow
def test_steps_with_frozen_weights_on_the_host_are_those_on_the_device(frozen_on_the_host):
    plain, all_on_the_host = (trained(PLAN_OF_FROZEN.with_levers(offload=name), 4, ADAPTED) for name in ("none", "all"))
    _, _, device, losses = plain
    assert losses[-1] != losses[0]
    batch = {name: values[: PLAN.micro_batch] for name, values in next(batches(1)).items()}
    for hosted in (frozen_on_the_host, all_on_the_host):
        _, _, state, again = hosted
        np.testing.assert_allclose(again, losses, rtol=1e-6)
        for (path, there), (_, here) in zip(leaves(state), leaves(device), strict=True):
            np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6, err_msg=path)
        assert evaluate_of(hosted, batch) == pytest.approx(evaluate_of(plain, batch), rel=1e-6)


def test_stacks_of_layers_that_are_frozen_lie_on_the_host_and_no_other_weights(frozen_on_the_host):
    program, step, state, _ = frozen_on_the_host
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        place = jax.tree_util.keystr(path)
        stacked = "['frozen']['base']['blocks']" in place and leaf.ndim >= 3 and leaf.size >= SMALLEST_MOVED
        assert leaf.sharding.memory_kind == (HOST if stacked else DEVICE), place
    assert movable_bytes(program.state)["frozen"] > 0
    assert step.memory_analysis().alias_size_in_bytes == tree_bytes(program.state)
    lie = [one.memory_kind for one in jax.tree.leaves(step.input_shardings[0][0])]
    assert lie == kinds(state), "the compiled step takes them where they lie"


def test_a_layer_of_frozen_weights_is_fetched_inside_the_loop_and_kept_for_no_backward_pass():
    """Nothing on the device has the size of a stack, in the traced step: neither a copy of it nor what a scan keeps."""
    for remat in ("none", "block"):
        plan = PLAN.with_levers(remat=remat, offload="frozen")
        task = ADAPTED.task(replace(plan.compute("cpu"), platform="gpu"))  # there layers are scanned without remat, too
        step = make_step(task, ADAPTED.update_rule(20), StepSpec(accumulation=plan.accumulation))
        state = jax.eval_shape(make_init(task, ADAPTED.update_rule(20)), jax.ShapeDtypeStruct((), jnp.uint32))
        lies = placed(state, "frozen", AbstractMesh((1,), ("device",)))
        batch = {name: jax.ShapeDtypeStruct(*spec) for name, spec in ADAPTED.spec.batch(4).items()}
        traced = {
            offload: jax.jit(step).trace(with_shardings(state, lies) if offload else state, batch).jaxpr
            for offload in (False, True)
        }
        stacks = {leaf.shape for leaf in jax.tree.leaves(state["params"]["frozen"]) if leaf.ndim == 3}
        fetched = {shape for shape, to in transfers(traced[True]) if to == jax.memory.Space.Device}
        assert fetched == {shape[1:] for shape in stacks if np.prod(shape) >= SMALLEST_MOVED}
        assert not transfers(traced[False])
        extra = temporary_bytes(traced[True]) - temporary_bytes(traced[False])
        assert extra <= 4 * max(np.prod(shape[1:]) for shape in stacks) * 2


WIDTH, LAYERS = 128, 3


def frozen_layers(key):
    kernels = jax.random.normal(key, (LAYERS, WIDTH, WIDTH)) / WIDTH
    return {"trainable": {"scale": jnp.ones((LAYERS, WIDTH))}, "frozen": {"kernels": kernels}}


def loss_of_frozen_layers(params, batch, *, compute):
    """A scan over frozen layers with learned scales beside them."""

    def block(x, layer):
        return x + jnp.tanh(layer["scale"] * frozen_dot(x, layer["kernel"], compute))

    step = plimsoll.rematerialised(block, compute.remat)
    layers = {"scale": params["trainable"]["scale"], "kernel": params["frozen"]["kernels"]}
    x, _ = jax.lax.scan(lambda x, layer: (step(x, layer), None), batch["x"], layers)
    return jnp.sum(jnp.square(x - batch["x"][:, ::-1])), x.size


def test_a_recipe_of_ones_own_may_leave_frozen_layers_and_inputs_of_blocks_on_the_host():
    recipe = plimsoll.recipe(
        init=frozen_layers,
        loss=loss_of_frozen_layers,
        data=lambda: {"x": np.ones((8, WIDTH), np.float32)},
        optimizer=optax.adam(1e-3),
        batch_size=4,
        steps=3,
        supported=("remat", "remat_offload", "frozen_offload"),
    )
    traced = {}
    for remat in ("block", "offload"):
        task, rule = recipe.task(Compute(levers=Levers(remat=remat))), recipe.update_rule(3)
        state = jax.eval_shape(make_init(task, rule), jax.ShapeDtypeStruct((), jnp.uint32))
        state = with_shardings(state, placed(state, "frozen", AbstractMesh((1,), ("device",))))
        batch = {name: jax.ShapeDtypeStruct(*spec) for name, spec in recipe.spec.batch(4).items()}
        traced[remat] = jax.jit(make_step(task, rule, StepSpec(accumulation=1))).trace(state, batch).jaxpr
    assert {shape for shape, _ in transfers(traced["block"])} == {(WIDTH, WIDTH)}, "a layer at a time"
    assert kept_on_host_bytes(traced["block"]) == 0
    assert kept_on_host_bytes(traced["offload"]) == LAYERS * 4 * WIDTH * 4, "each block's input"


def transfers(closed):
    """Shapes that go from one memory to another, and where to."""
    found = []
    for equation in equations(closed.jaxpr):
        if equation.primitive.name == "device_put":
            for before, after in zip(equation.invars, equation.outvars, strict=True):
                spaces = [one.aval.memory_space for one in (before, after)]
                if spaces[0] != spaces[1]:
                    found.append((after.aval.shape, spaces[1]))
    return found


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda one: isinstance(one, jex.ClosedJaxpr | jex.Jaxpr)
        ):
            if isinstance(value, jex.ClosedJaxpr | jex.Jaxpr):
                yield from equations(getattr(value, "jaxpr", value))
