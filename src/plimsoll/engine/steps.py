"""A recipe's functions (init, step, evaluate) under any plan: lowered, traced as jaxprs, with exact bytes of the state.

Tracing and lowering use shapes only. Nothing is allocated, and the devices need not be in this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, AxisType

from plimsoll.engine.executables import Files
from plimsoll.engine.program import functions_of
from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan, plain_compute
from plimsoll.planner.chips import BACKEND
from plimsoll.planner.types import Static, Subject
from plimsoll.recipes.recipe import Recipe
from plimsoll.training import program
from plimsoll.training.initial_weights import twice_at_first
from plimsoll.training.step import StepSpec, evaluated, make_evaluate, make_init, make_step
from plimsoll.types import Compute, Precision, Storage

KEPT_TRACES = 4
"""Number of traced steps that `RecipeSteps` keeps for lowering. Each takes some MiB."""


class RecipeSteps:
    """Traces and lowers the functions of a recipe under different plans, for the devices of one chip."""

    def __init__(self, recipe: Recipe, subject: Subject, devices: Sequence[Any] | None) -> None:
        """Initializes without tracing.

        Args:
            recipe: The recipe.
            subject: Schedule length, step options and chip, which the functions also depend on.
            devices: Devices that functions are lowered for; None for the only device of this process.
        """
        self.recipe = recipe
        self.batch = self.recipe.spec.batch(self.recipe.effective_batch)
        """Shapes and dtypes of an effective batch (of a whole step)."""
        self.subject = subject
        self._backend = BACKEND[subject.platform]
        self._devices = devices
        self._traced: dict[Plan, jax.stages.Traced] = {}
        """Latest traced steps, by plan, so that `lowered` need not trace them again."""

    # Functions for the compiler.

    def functions(self, plan: Plan) -> program.Functions:
        """Returns the plan's functions, the same as in the training process."""
        return functions_of(
            self.recipe,
            plan,
            self.subject.step_options,
            steps=self.subject.steps,
            backend=self._backend,
            devices=self._devices,
        )

    def file(self, plan: Plan, name: str) -> Path | None:
        """Returns the path of the cache file for a plan's compiled function; None if the function is not cached.

        Args:
            plan: The plan.
            name: Name of the function: `init`, `evaluate` or `step`.
        """
        subject = self.subject
        files = Files.of(self.recipe, plan, subject.step_options, steps=subject.steps)
        return None if files is None else files.path(name)

    def lowered(self, plan: Plan) -> tuple[jax.stages.Lowered, Any]:
        """Returns the plan's lowered step for all devices, and the step's jaxpr."""
        traced = self._traced.pop(plan, None)
        if traced is None:
            return self.functions(plan).step(self.batch)
        return traced.lower(), traced.jaxpr

    def lowered_evaluation(self, plan: Plan) -> jax.stages.Lowered:
        """Returns the lowered function that evaluates one batch under a plan."""
        return self.functions(plan).evaluate(self._validation_batch(plan))

    def random_batch(self) -> dict[str, np.ndarray]:
        """Returns an effective batch of random zeros and ones, the same at every call."""
        random = np.random.default_rng(0)
        return {name: random.integers(0, 2, shape).astype(dtype) for name, (shape, dtype) in self.batch.items()}

    # Jaxprs of one device's part of a computation.

    def share(self, plan: Plan) -> Any:
        """Returns the jaxpr of one device's part of a step, with the device's rows of the batch and the whole state."""
        if self.subject.devices == 1 and self._devices is None and plan.offload == "none":
            return self._whole(plan).jaxpr
        state = self.state(plan.storage, plan.precision, examples=self._examples)
        if plan.offload != "none":  # memory kinds in the types mark offloaded arrays, which are not counted
            mesh = AbstractMesh((1,), ("device",), axis_types=(AxisType.Auto,))
            state = sharding.with_shardings(state, offload.placed(state, plan.offload, mesh))
        return self._step(plan, plan.compute(self._backend), state, self._rows(self.batch))

    def plain(self, plan: Plan) -> Any:
        """Returns the jaxpr of the whole step with plain float32 matmuls, so that all FLOPs can be counted.

        An accelerator's attention kernels would hide matmuls from the jaxpr.
        """
        compute = plan.with_levers(precision="float32").compute("cpu")
        return self._step(plan, compute, self.state(plan.storage, plan.precision), program.shapes(self.batch))

    def init_share(self, plan: Plan) -> Any:
        """Returns the jaxpr of one device's initialization of the state."""
        init = make_init(
            self._task(plan),
            self._rule(plan.storage),
            frozen_bits=plan.lever("frozen_bits"),
            precision=plan.precision,
            examples=self._examples,
        )
        return jax.jit(init).trace(jax.ShapeDtypeStruct((), jnp.uint32)).jaxpr

    def evaluation_share(self, plan: Plan) -> Any:
        """Returns the jaxpr by which one device evaluates its rows of a batch."""
        params = evaluated(self.state(plan.storage, plan.precision))
        rows = self._rows(self._validation_batch(plan))
        return jax.jit(make_evaluate(self._task(plan))).trace(params, rows).jaxpr

    # Shapes and bytes of the state.

    def static(self, fsdp: int, storage: Storage) -> Static:
        """Returns the exact bytes of the training state on one device, by component.

        Args:
            fsdp: Number of devices that parameters and optimizer state are split over.
            storage: Bits in which weights and optimizer state are stored.
        """
        state, devices = self.state(storage), self.subject.devices
        params = state["params"]
        hints = self.recipe.hints
        parts = {
            "parameters": params,
            "optimizer": state["optimizer"],
            "ema": state.get("ema", {}),
            "all": state | {"carry": None},
        }
        held = {name: sharding.device_bytes(tree, fsdp=fsdp) for name, tree in parts.items()}
        return Static(
            parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
            parameter_bytes=held["parameters"],
            optimizer_bytes=held["optimizer"],
            ema_bytes=held["ema"],
            carry_bytes=program.tree_bytes(state["carry"]) // devices,  # split by examples, like the batch
            other_bytes=held["all"] - held["parameters"] - held["optimizer"] - held["ema"],
            largest_leaf_bytes=max(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
            batch_bytes=program.tree_bytes(program.shapes(self.batch)) // devices,
            whole_state_bytes=program.tree_bytes(state),
            given_bytes=program.tree_bytes(params["frozen"]) if hints.frozen_given else 0,
            initial_bytes=twice_at_first(params) if hints.begins_with else 0,
            movable=offload.movable_bytes(state, fsdp=fsdp),
        )

    def state(self, storage: Storage, precision: Precision = "float32", *, examples: int | None = None) -> Any:
        """Returns shapes and dtypes of the whole training state. Of a plan, only `storage` and `precision` change them.

        Args:
            storage: Bits in which weights and optimizer state are stored.
            precision: Precision of matmuls. float16 adds three numbers for loss scaling.
            examples: Number of examples that the state has a recurrent carry for; by default the effective batch size.
        """
        init = make_init(
            self.recipe.task(plain_compute(embedding_bits=storage.embedding_bits)),
            self._rule(storage),
            frozen_bits=storage.frozen_bits,
            precision=precision,
            examples=self.recipe.effective_batch if examples is None else examples,
        )
        return jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))

    def gradient_bytes(self, plan: Plan) -> int:
        """Returns the bytes of the whole gradient, which has the dtypes of the trainable weights."""
        return program.tree_bytes(self.state(plan.storage, plan.precision)["params"]["trainable"])

    # Helpers.

    @property
    def _examples(self) -> int:
        """Number of examples of an effective batch that one device gets."""
        return self.recipe.effective_batch // self.subject.devices

    def _whole(self, plan: Plan) -> jax.stages.Traced:
        traced = self.functions(plan).traced(self.batch)
        others = list(self._traced.items())[1 - KEPT_TRACES :]
        self._traced = dict(others) | {plan: traced}
        return traced

    def _step(self, plan: Plan, compute: Compute, state: Any, batch: Any) -> Any:
        spec = StepSpec.of(plan, self.subject.step_options)
        step = make_step(self.recipe.task(compute), self._rule(plan.storage), spec)
        return jax.jit(step, donate_argnums=0).trace(state, batch).jaxpr

    def _task(self, plan: Plan) -> Any:
        return self.recipe.task(plan.compute(self._backend))

    def _rule(self, storage: Storage) -> optax.GradientTransformation:
        return self.recipe.update_rule(self.subject.steps, storage)

    def _validation_batch(self, plan: Plan) -> program.BatchSpec:
        return self.recipe.spec.validation_batch(plan.micro_batch)

    def _rows(self, batch: program.BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and dtypes of one device's rows of a batch."""
        devices = self.subject.devices
        return {
            name: jax.ShapeDtypeStruct((spec.shape[0] // devices, *spec.shape[1:]), spec.dtype)
            for name, spec in program.shapes(batch).items()
        }
