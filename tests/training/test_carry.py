"""A task with a carry and a table: the same numbers however the batch is split, updated where they lie, saved whole."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plain_code import PLAIN_CODE
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.ema import Average
from plimsoll.optimizers.adam_atan2 import AdamATan2
from plimsoll.optimizers.in_place import in_place
from plimsoll.planned import Plan
from plimsoll.planner.flops import dot_flops
from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.program import Functions, compiled, tree_bytes
from plimsoll.training.reports import numbers_of
from plimsoll.training.step import StepSpec, evaluated, make_evaluate, make_init, make_step
from plimsoll.types import IGNORED_LABEL, Compute, Levers, StepOptions
from small_tasks import relative_distance

MODEL = Trm(
    width=32,
    layers=1,
    high_cycles=2,
    low_cycles=1,
    puzzle_positions=1,
    halt_max_steps=3,
    halt_exploration=0.3,
    puzzle_learning_rate=1e-2,
    puzzle_weight_decay=0.1,
)
SPEC = PuzzleSpec(arrays={}, vocab=5, length=16, identifiers=50)
EXAMPLES, STEPS = 8, 6


def task(model=MODEL, spec=SPEC, **levers):
    return RecursiveSolver(model, spec, Compute(levers=Levers(**levers)))


def rule(rate=1e-3):
    settings = AdamATan2(learning_rate=rate, warmup_steps=0, decay="constant", weight_decay=0.1)
    return in_place(settings.rule(100), average=Average(0.9), row_rule=MODEL.row_rule(settings, 100))


def batch(seed, *, examples=EXAMPLES):
    random = np.random.default_rng(seed)
    labels = random.integers(0, SPEC.vocab, (examples, SPEC.length)).astype(np.int32)
    labels[:, ::3] = IGNORED_LABEL
    return {
        "inputs": random.integers(0, SPEC.vocab, (examples, SPEC.length)).astype(np.int32),
        "labels": labels,
        "puzzle_identifiers": random.integers(0, 12, examples).astype(np.int32),
    }


@cache
def init(precision="float32"):
    return jax.jit(make_init(task(), rule(), precision=precision, examples=EXAMPLES))


@cache
def step(accumulation, remat="none", precision="float32"):
    return jax.jit(make_step(task(remat=remat, precision=precision), rule(), StepSpec(accumulation=accumulation)))


@cache
def trained(accumulation, remat="none"):
    """State and reports, of steps in which slots halt, stay and are filled again."""
    state, reports = init()(np.uint32(3)), []
    for number in range(STEPS):
        state, report = step(accumulation, remat)(state, batch(number))
        reports.append((numbers_of(jax.device_get(report)), jax.device_get(state["carry"])))
    return jax.device_get(state), reports


def test_slots_really_halt_at_different_times():
    _, reports = trained(1)
    assert reports[MODEL.halt_max_steps - 1][0]["supervision_steps"] == MODEL.halt_max_steps
    halted = np.array([carry["halted"] for _, carry in reports])
    assert halted.any()
    assert not halted.all()
    assert len({tuple(carry["steps"]) for _, carry in reports}) > 2


@pytest.mark.slow_except("2-none")
@pytest.mark.parametrize(("accumulation", "remat"), [(2, "none"), (4, "block")])
def test_the_split_and_remat_change_nothing(accumulation, remat):
    state, reports = trained(accumulation, remat)
    expected, expected_reports = trained(1)
    for name in ("params", "ema"):
        assert relative_distance(state[name], expected[name]) < 1e-4
    latents = [{name: carry[name] for name in ("high", "low")} for carry in (state["carry"], expected["carry"])]
    assert relative_distance(*latents) < 1e-3  # rounding is magnified from round to round
    for (one, carry), (other, expected_carry) in zip(reports, expected_reports, strict=True):
        assert one.keys() == other.keys()
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        for name in ("steps", "halted", "inputs", "labels", "puzzle_identifiers"):
            np.testing.assert_array_equal(carry[name], expected_carry[name])


def test_only_rows_that_were_read_have_moved():
    state, reports = trained(2)
    before, after = (one["params"]["tables"]["puzzles"] for one in (init()(np.uint32(3)), state))
    read = {int(one) for _, carry in reports for one in carry["puzzle_identifiers"]}
    moved = {int(row) for row in np.flatnonzero((np.asarray(before) != after).any(axis=1))}
    assert moved == read
    assert len(read) < SPEC.identifiers


def test_neither_average_nor_norm_see_the_table():
    state, (report, _) = trained(1)[0], trained(1)[1][0]
    assert jax.tree.structure(state["ema"]) == jax.tree.structure(state["params"]["trainable"])
    assert jax.tree.structure(state["optimizer"].mean) == jax.tree.structure(state["params"]["trainable"])
    data, start = batch(0), jax.device_get(init()(np.uint32(3)))

    def loss(trainable):
        solver = task()
        keys = jax.vmap(jax.random.key)(jnp.arange(EXAMPLES, dtype=jnp.uint32))
        total, weight = solver.loss(start["params"] | {"trainable": trainable}, None, data, keys, train=True)[0]
        return total / weight

    gradient = jax.jit(jax.grad(loss))(start["params"]["trainable"])
    norm = np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(gradient)))
    assert report["gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_an_evaluation_reads_average_and_table_and_takes_all_steps():
    params = evaluated(trained(1)[0])
    evaluate = jax.jit(make_evaluate(task()))
    sums = evaluate(params, batch(0))
    assert sums["supervision_steps"].total == EXAMPLES * MODEL.halt_max_steps
    moved = evaluate(params | {"tables": {"puzzles": params["tables"]["puzzles"] + 1}}, batch(0))
    assert moved["loss"].total != sums["loss"].total


@pytest.mark.slow
def test_a_step_that_is_skipped_keeps_carry_and_table():
    state = init("float16")(np.uint32(3))
    state, _ = step(2, "none", "float16")(state, batch(0))
    before = jax.device_get(state)
    broken = before | {"loss_scale": before["loss_scale"]._replace(scale=jnp.float32(np.inf))}
    after, report = jax.device_get(step(2, "none", "float16")(broken, batch(1)))
    assert report["skipped_steps"] == before["loss_scale"].skipped_steps + 1
    for name in ("params", "optimizer", "ema", "carry"):
        for one, other in zip(jax.tree.leaves(before[name]), jax.tree.leaves(after[name]), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_saved_state_goes_on_to_the_same_bits(tmp_path):
    state = init()(np.uint32(3))
    for number in range(2):
        state, _ = step(1)(state, batch(number))
    assert not state["carry"]["halted"].all()  # in the middle of puzzles
    checkpoints = Checkpoints(RunFolder(tmp_path), in_background=False)
    checkpoints.save(2, state, {})
    restored = jax.device_get(checkpoints.newest(jax.eval_shape(lambda: state))[0].state)
    for number in range(2, STEPS):
        restored, _ = step(1)(restored, batch(number))
    for one, other in zip(jax.tree.leaves(trained(1)[0]), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(one, other)


def step_bytes(spec, *, accumulation, examples=8):
    plan = Plan(
        chip="cpu",
        accumulation=accumulation,
        levers=Levers(
            micro_batch=examples // accumulation,
            remat="none",
            loss_chunk=0,
            precision="float32",
            prefetch=1,
            async_save=False,
        ),
    )
    shapes = {name: ((examples, *rows.shape[1:]), str(rows.dtype)) for name, rows in batch(0).items()}
    functions = Functions(task(spec=spec), rule(), plan, StepOptions())
    program = functions.program(batch=shapes, evaluation_batch=shapes)
    stats = compiled(program.step).memory_analysis()
    assert stats.alias_size_in_bytes == tree_bytes(program.state)  # every byte of the state is donated
    return stats.temp_size_in_bytes, tree_bytes(program.state)


@pytest.mark.slow
def test_temporaries_do_not_grow_with_the_table():
    """A million rows by shapes alone; nothing is allocated."""
    temporary, state = step_bytes(replace(SPEC, identifiers=1_000), accumulation=2)
    large, larger_state = step_bytes(replace(SPEC, identifiers=1_000_000), accumulation=2)
    assert larger_state - state == 999_000 * MODEL.width * 4
    assert large < temporary + 2**16


@pytest.mark.slow
def test_the_carry_is_changed_where_it_lies():
    """Of micro-batches: each writes its slots over those it has read. 2,000 slots carry 8.7 MB of latents."""
    temporary, state = step_bytes(replace(SPEC, identifiers=1), accumulation=1000, examples=2000)
    few, state_of_few = step_bytes(replace(SPEC, identifiers=1), accumulation=10, examples=20)
    assert state - state_of_few > 8 * 2**20
    assert temporary - few < 0.15 * (state - state_of_few)


@pytest.mark.slow
def test_a_step_split_over_devices_is_the_same_step():
    """Eight of them, in a process of its own: slots are split as the batch is, the table by its rows."""
    script = Path(__file__).parents[1] / "support/spread_puzzles.py"
    environment = os.environ | {"XLA_FLAGS": PLAIN_CODE}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["difference"] < 1e-5
    assert found["carry_by_rows"]
    assert found["table_shard"] == [512, 16]


@pytest.mark.parametrize(
    ("variant", "remat", "calls"), [("mlp", "none", 21 + 2 * 7), ("attention", "block", 21 + 2 * 7 + 6)]
)
def test_a_step_multiplies_what_the_published_one_does(variant, remat, calls):
    """21 calls of the module forward and 7 of them backward, at twice the price; remat calls 6 once more. The weight of
    the batch costs no forward pass. Counted in the traced step, at published size."""
    spec = PuzzleSpec(arrays={}, vocab=11, length=81, identifiers=1)
    solver, shapes = task(Trm(variant=variant, halt_max_steps=3), spec, remat=remat), batch_shapes(spec)
    state = jax.eval_shape(make_init(solver, rule(), examples=EXAMPLES), jax.ShapeDtypeStruct((), jnp.uint32))
    step = dot_flops(jax.jit(make_step(solver, rule(), StepSpec(accumulation=2))).trace(state, shapes).jaxpr)
    keys = jax.eval_shape(jax.vmap(jax.random.key), jax.ShapeDtypeStruct((EXAMPLES,), jnp.uint32))
    forward = jax.jit(lambda p, c, b, k: solver.loss(p, c, b, k, train=True)[0])
    assert step / dot_flops(forward.trace(state["params"], state["carry"], shapes, keys).jaxpr) == pytest.approx(
        calls / 21, rel=1e-3
    )


def batch_shapes(spec):
    tokens = jax.ShapeDtypeStruct((EXAMPLES, spec.length), jnp.int32)
    rows = jax.ShapeDtypeStruct((EXAMPLES,), jnp.int32)
    return {"inputs": tokens, "labels": tokens, "puzzle_identifiers": rows}
