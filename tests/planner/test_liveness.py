"""What is alive at once, counted without a compiler: exact where it can be seen, near the compiler's elsewhere."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from plimsoll.planned import Plan
from plimsoll.planner.liveness import CALLS, temporary_bytes
from plimsoll.recipes.registry import preset
from plimsoll.training import program
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import Levers

MIB = 2**20
SQUARE = jax.ShapeDtypeStruct((512, 512), jnp.float32)  # 1 MiB


def counted(function, *arguments, **how):
    return temporary_bytes(jax.jit(function).trace(*arguments).jaxpr, **how)


def test_elementwise_work_results_and_what_nobody_reads_take_nothing():
    def unused(x):
        x @ x
        return jnp.sum(x)

    assert counted(lambda x: jnp.sum(jnp.tanh(x) * 2 + 1), SQUARE) <= 8
    assert counted(unused, SQUARE) <= 4
    assert counted(lambda x: x @ x, SQUARE) == 0


def test_a_product_is_there_until_its_last_use():
    assert counted(lambda x: (x @ x) @ x, SQUARE) == MIB
    assert counted(lambda x: ((x @ x) @ x) @ x, SQUARE) == 2 * MIB  # the one that is read, and the one that is made

    def all_kept(x):
        a = x @ x
        b = a @ x
        return (b @ x) @ a

    assert counted(all_kept, SQUARE) == 3 * MIB


def test_the_workspace_of_a_library_is_there_while_a_product_runs_and_not_after_it():
    assert counted(lambda x: x @ x, SQUARE, workspace=3 * MIB) == 3 * MIB
    assert counted(lambda x: (x @ x) @ x, SQUARE, workspace=3 * MIB) == 4 * MIB
    scanned = lambda x: jax.lax.scan(lambda x, _: (x @ x, None), x, length=3)[0]  # noqa: E731
    assert counted(scanned, SQUARE, workspace=3 * MIB) - counted(scanned, SQUARE) == 3 * MIB

    def sorted_after_a_product(x):
        return jnp.sort(jnp.concatenate([x @ x] * 4))

    assert counted(sorted_after_a_product, SQUARE, workspace=2 * MIB) == counted(sorted_after_a_product, SQUARE)


def test_a_loop_holds_one_round_and_what_it_stacks():
    def stacked(x):
        x, kept = jax.lax.scan(lambda x, _: ((x @ x) @ x, x @ x), x, length=8)
        return jnp.sum(x) + jnp.sum(kept @ x)

    assert 8 * MIB <= counted(stacked, SQUARE) <= 20 * MIB  # eight stacked, their product, a round


def test_functions_of_elementwise_work_and_other_names_of_bytes_take_nothing():
    silu = jax.jit(jax.nn.silu)  # a function of its own in the trace
    product = counted(lambda x: jnp.sum((x @ x) * 2), SQUARE)
    assert counted(lambda x: jnp.sum(silu(x @ x) * 2), SQUARE, inlined=CALLS) == product
    assert counted(lambda x: jnp.sum(silu(x @ x) * 2), SQUARE) == product + MIB  # on a CPU it is written

    def under_other_names(x):
        bits = jax.lax.bitcast_convert_type(checkpoint_name(x, "kept"), jnp.uint32)
        return jnp.sum(jax.lax.dynamic_slice(bits, (0, 0), (1, 512)))

    assert counted(under_other_names, SQUARE) <= 4096


def test_weights_that_a_loop_rounds_in_every_round_are_rounded_before_it():
    def rounds(x, weights):
        body = lambda x, _: ((x.astype(jnp.bfloat16) @ weights.astype(jnp.bfloat16)).astype(jnp.float32), None)  # noqa: E731
        return jax.lax.scan(body, x, length=3)[0]

    narrow = jax.ShapeDtypeStruct(SQUARE.shape, jnp.bfloat16)
    more = counted(rounds, SQUARE, SQUARE) - counted(rounds, SQUARE, narrow)
    assert MIB // 2 <= more <= MIB  # the whole time, and while they are read


def test_what_a_loop_fills_is_its_result_from_the_beginning():
    def filled(x):
        rows = lambda whole, i: (jax.lax.dynamic_update_slice(whole, x[:1] * 2, (i, 0)), None)  # noqa: E731
        return jax.lax.scan(rows, jnp.empty((2_048, 512)), jnp.arange(8))[0]

    assert counted(filled, SQUARE) <= 4096
    assert counted(lambda x: jnp.sum(filled(x) @ x), SQUARE) <= 8 * MIB + 4096  # the filled one, and its product
    assert counted(lambda x: jnp.sum(filled(x) @ x), SQUARE) >= 8 * MIB


def test_what_is_written_over_is_a_copy_where_it_is_read_again():
    def updated(x):
        product = x @ x
        return jax.lax.dynamic_update_slice(product, x[:1], (0, 0)), product @ x

    assert MIB <= counted(updated, SQUARE) <= MIB + 4096


@pytest.mark.slow_except("2-0-block")
@pytest.mark.parametrize("remat", ["none", "dots", "block"])
@pytest.mark.parametrize(("micro_batch", "layerwise"), [(2, 0), (8, 0), (16, 2)])
def test_a_step_is_estimated_near_what_the_compiler_needs(remat, micro_batch, layerwise):
    recipe = preset("stories").replace(width=128, layers=3, heads=2, vocab_size=1024, seq_len=128, batch_size=16)
    plan = Plan(
        chip="h200",
        accumulation=16 // micro_batch,
        levers=Levers(
            micro_batch=micro_batch,
            remat=remat,
            loss_chunk=0,
            precision="float32",
            prefetch=2,
            async_save=True,
            layerwise=layerwise,
        ),
    )
    task, optimizer = recipe.task(plan.compute("gpu")), recipe.update_rule(100)
    state = jax.eval_shape(make_init(task, optimizer), jax.ShapeDtypeStruct((), jnp.uint32))
    step = jax.jit(
        make_step(task, optimizer, StepSpec(accumulation=plan.accumulation, layerwise=layerwise)), donate_argnums=0
    )
    traced = step.trace(state, program.shapes(recipe.spec.batch(16)))
    # Without this pass the CPU's compiler takes rematerialisation out again. LLVM's passes change no buffer.
    options = {"xla_disable_hlo_passes": "cse_barrier_expander", "xla_backend_optimization_level": 0}
    compiled = traced.lower().compile(compiler_options=options)
    needed = compiled.memory_analysis().temp_size_in_bytes
    assert 0.6 * needed < temporary_bytes(traced.jaxpr) < 1.3 * needed
