"""The executables of a run: init, step, evaluate. Lowered from shapes, so nothing is allocated to compile them.

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
from plimsoll.training import memory
from plimsoll.training.step import Report, evaluated, make_evaluate, make_init, make_step
from plimsoll.types import Plan, Task

COUNTED: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""On a CPU, XLA hands whole groups of operations to a library, which allocates what lies between them where no compiler
sees it: 164 MiB more than was promised with windows of 3,000 tokens. Single dots it may have. May go when the groups'
buffers are in `memory_analysis` (docs/log.md, "What the compiler does not count")."""

BatchSpec = Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Program:
    """Lowered, not yet compiled. `state` holds shapes."""

    init: jax.stages.Lowered
    step: jax.stages.Lowered
    evaluate: jax.stages.Lowered
    state: Any


@dataclass(frozen=True)
class Executables:
    init: jax.stages.Compiled
    step: Callable[[Any, Any], tuple[Any, Report]]
    """Compiled, its state donated."""
    evaluate: jax.stages.Compiled
    state: Any
    """Shapes and dtypes of the state; where some of it is offloaded, where it lies, too."""


def lower(
    task: Task, optimizer: optax.GradientTransformation, plan: Plan, *, batch: BatchSpec, evaluation_batch: BatchSpec
) -> Program:
    """The run's functions for these shapes; the state is donated to the step."""
    how: dict[str, Any] = {"frozen_bits": plan.frozen_bits, "precision": plan.precision}
    init = make_init(task, optimizer, **how, examples=plan.effective_batch)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    state = jax.eval_shape(init, seed)
    step = make_step(task, optimizer, accumulation=plan.accumulation, layerwise=plan.layerwise)
    if plan.offload != "none":
        lies = offload.placed(state, plan.offload, Mesh(np.asarray(jax.devices()[:1]), ("device",)))
        state = with_shardings(state, lies)
        init = jax.jit(init, out_shardings=lies)
        step = jax.jit(step, donate_argnums=0, out_shardings=(lies, None))
    else:
        init, step = jax.jit(init), jax.jit(step, donate_argnums=0)
    return Program(
        init=init.lower(seed),
        step=step.lower(state, shapes(batch)),
        evaluate=jax.jit(make_evaluate(task)).lower(evaluated(state), shapes(evaluation_batch)),
        state=state,
    )


def compile_all(program: Program) -> Executables:
    init = compiled(program.init)
    memory.trim()  # loading one leaves tens of MiB that the next would come on top of
    evaluate = compiled(program.evaluate)
    memory.trim()
    return Executables(init=init, step=compiled(program.step), evaluate=evaluate, state=program.state)


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """For the backend of this process, such that the compiler's bytes are the bytes it will take."""
    return lowered.compile(compiler_options=COUNTED if jax.default_backend() == "cpu" else None)


def shapes(spec: BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in spec.items()}


def tree_bytes(tree: Any) -> int:
    """Of arrays or of shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
