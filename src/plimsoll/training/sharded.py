"""The executables of a run over several devices: the batch split by rows, the state over `plan.fsdp` of them.

They are traced and lowered from shapes with shardings, so it works for devices that are not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan
from plimsoll.training.program import BatchSpec, Program, shapes
from plimsoll.training.step import evaluated, make_evaluate, make_init, make_step
from plimsoll.types import Task


class Sharded:
    """One plan's functions over `devices`; each is traced when it is requested."""

    def __init__(self, devices: Sequence[Any], task: Task, optimizer: optax.GradientTransformation, plan: Plan) -> None:
        self.mesh = sharding.mesh_of(devices, fsdp=plan.fsdp)
        self._task, self._optimizer, self._plan = task, optimizer, plan
        options: dict[str, Any] = {"frozen_bits": plan.frozen_bits, "precision": plan.precision}
        self._init = make_init(task, optimizer, **options, examples=plan.effective_batch)
        shaped = jax.eval_shape(self._init, jax.ShapeDtypeStruct((), jnp.uint32))
        specs = sharding.state_specs(shaped, fsdp=plan.fsdp)
        if plan.offload == "none":
            self._shardings, self._memory_kind, self._mesh = sharding.shardings(self.mesh, specs), None, self.mesh
        else:  # where memory kinds matter, all arguments name theirs, and on a mesh that keeps them
            self._memory_kind, self._mesh = offload.DEVICE, self.mesh.abstract_mesh
            self._shardings = offload.placed(shaped, plan.offload, self._mesh, specs)
        self._whole = NamedSharding(self._mesh, PartitionSpec(), memory_kind=self._memory_kind)
        self.state = sharding.with_shardings(shaped, self._shardings)

    def program(self, *, batch: BatchSpec, evaluation_batch: BatchSpec) -> Program:
        """Lowers all functions of a run."""
        step, _ = self.step(batch)
        return Program(
            init=self.init(), step=step, evaluate=self.evaluate(evaluation_batch), state=self.state, put=self.put
        )

    def init(self) -> jax.stages.Lowered:
        seed = jax.ShapeDtypeStruct((), jnp.uint32, sharding=self._whole)
        with jax.set_mesh(self.mesh):
            return jax.jit(self._init, out_shardings=self._shardings).lower(seed)

    def step(self, batch: BatchSpec) -> tuple[jax.stages.Lowered, Any]:
        """Returns the lowered train step and its jaxpr. The state is donated, and keeps its shardings."""
        step = make_step(
            self._task, self._optimizer, accumulation=self._plan.accumulation, layerwise=self._plan.layerwise
        )
        with jax.set_mesh(self.mesh):
            jitted = jax.jit(step, donate_argnums=0, out_shardings=(self._shardings, self._whole))
            traced = jitted.trace(self.state, self._rows(batch))
            return traced.lower(), traced.jaxpr

    def evaluate(self, batch: BatchSpec) -> jax.stages.Lowered:
        with jax.set_mesh(self.mesh):
            evaluate = jax.jit(make_evaluate(self._task), out_shardings=self._whole)
            return evaluate.lower(evaluated(self.state), self._rows(batch))

    def put(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns a batch of NumPy arrays, split by rows.

        Every process reads the whole batch and takes the rows of its own devices from it: none twice, none lost,
        however many processes there are.
        """
        rows = NamedSharding(self.mesh, sharding.ROWS)
        return {
            name: jax.make_array_from_callback(values.shape, rows, values.__getitem__) for name, values in batch.items()
        }

    def _rows(self, batch: BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        rows = NamedSharding(self._mesh, sharding.ROWS, memory_kind=self._memory_kind)
        return {
            name: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=rows) for name, spec in shapes(batch).items()
        }
