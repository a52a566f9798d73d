"""The executables of a run: init, step, evaluate. They are lowered from shapes: compiling allocates nothing.

The planner compiles them in a child, into the persistent cache; the training process lowers the same functions and
loads what it finds there. All of them, because one cold compile costs more memory than a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from plimsoll.levers import offload
from plimsoll.levers.sharding import with_shardings
from plimsoll.planned import Plan
from plimsoll.training import memory
from plimsoll.training.step import Report, evaluated, make_evaluate, make_init, make_step
from plimsoll.types import Batch, Task

COUNTED: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""Compiler options for a CPU, with which the compiler counts all that a step allocates.

XLA hands whole groups of operations to a library, which allocates its temporaries uncounted: 164 MiB more than was
predicted with windows of 3,000 tokens. Single dots are still given to it. May go when the groups' buffers are in
`memory_analysis` (docs/log.md, "What the compiler does not count")."""

BatchSpec = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Program:
    """The functions of a run, lowered and not yet compiled. `state` holds shapes."""

    init: jax.stages.Lowered
    step: jax.stages.Lowered
    evaluate: jax.stages.Lowered
    state: Any
    put: Callable[[Batch], Any] | None = None
    """Splits a batch of NumPy arrays over several devices; None on one."""


@dataclass(frozen=True)
class Executables:
    """The compiled functions of a run."""

    init: jax.stages.Compiled
    step: Callable[[Any, Any], tuple[Any, Report]]
    """Compiled, its state donated."""
    evaluate: jax.stages.Compiled | Fed
    state: Any
    """Shapes and dtypes of the state; and shardings where it is offloaded or split over devices."""


@dataclass(frozen=True)
class Fed:
    """An executable that splits its second argument, a batch of NumPy arrays, over the devices first."""

    executable: jax.stages.Compiled
    put: Callable[[Batch], Any]

    def __call__(self, state: Any, batch: Batch) -> Any:
        return self.executable(state, self.put(batch))

    def memory_analysis(self) -> Any:
        return self.executable.memory_analysis()


def lower(
    task: Task, optimizer: optax.GradientTransformation, plan: Plan, *, batch: BatchSpec, evaluation_batch: BatchSpec
) -> Program:
    """Lowers the run's functions for these shapes; the state is donated to the step."""
    options: dict[str, Any] = {"frozen_bits": plan.frozen_bits, "precision": plan.precision}
    init = make_init(task, optimizer, **options, examples=plan.effective_batch)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    state = jax.eval_shape(init, seed)
    step = make_step(task, optimizer, accumulation=plan.accumulation, layerwise=plan.layerwise)
    if plan.offload != "none":
        shardings = offload.placed(state, plan.offload, Mesh(np.asarray(jax.devices()[:1]), ("device",)))
        state = with_shardings(state, shardings)
        init = jax.jit(init, out_shardings=shardings)
        step = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))
    else:
        init, step = jax.jit(init), jax.jit(step, donate_argnums=0)
    return Program(
        init=init.lower(seed),
        step=step.lower(state, shapes(batch)),
        evaluate=jax.jit(make_evaluate(task)).lower(evaluated(state), shapes(evaluation_batch)),
        state=state,
    )


def compile_all(program: Program) -> Executables:
    """Compiles the functions, or loads them from the cache."""
    init = compiled(program.init)
    memory.trim()  # loading one leaves tens of MiB that the next would come on top of
    evaluate = compiled(program.evaluate)
    memory.trim()
    step = compiled(program.step)
    if program.put is not None:
        evaluate, step = Fed(evaluate, program.put), Fed(step, program.put)
    return Executables(init=init, step=step, evaluate=evaluate, state=program.state)


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles for the backend of this process, such that the compiler's bytes are the bytes it will take."""
    return lowered.compile(compiler_options=COUNTED if jax.default_backend() == "cpu" else None)


def shapes(spec: BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch."""
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in spec.items()}


def held_bytes(tree: Any) -> dict[int, int]:
    """Returns the bytes that each device of this process really holds of the arrays, by its number."""
    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def tree_bytes(tree: Any) -> int:
    """Returns the bytes of arrays or of shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
