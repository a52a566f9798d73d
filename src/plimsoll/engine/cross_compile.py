"""Compiles the real step for a chip that is not here, split over its devices, and reports its bytes.

Where the chip's compiler is installed (`plimsoll chips --install`), the step is compiled for its topology. Where it is
not, `planner.liveness` measures the traced step, and the plan says `estimated`.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from plimsoll.engine.compile import LocalCompiler
from plimsoll.levers import offload, sharding
from plimsoll.planned import Plan
from plimsoll.planner import chips, liveness, topology
from plimsoll.planner.child import plan_of
from plimsoll.planner.flops import dot_flops, dots
from plimsoll.planner.hlo.buffers import largest_temporaries
from plimsoll.planner.types import Analysis, Rates
from plimsoll.training import memory, program
from plimsoll.training.sharded import Sharded
from plimsoll.training.step import evaluated, make_evaluate, make_init, make_step

BACKEND = {"cuda": "gpu", "tpu": "tpu"}
"""The name a chip's platform has in JAX."""


class CrossCompiler(LocalCompiler):
    """A recipe's compiler for one chip.

    `about` holds the `chip` besides what LocalCompiler needs, and whether its compiler is installed (`compiled`).
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__(about)
        self.chip = chips.Chip(**about["chip"])
        self._devices = self.chip.devices
        self.compiled = about["compiled"]
        self.devices = topology.devices(self.chip) if self.compiled else []

    def rates(self) -> Rates:
        """Returns the chip's rates from the catalogue."""
        return chips.rates(self.chip)

    def analyse(self, plan: Plan) -> Analysis:
        if not self.compiled:
            return self.estimated(plan)
        lowered, jaxpr = self._sharded(plan).step(self.recipe.batch_spec(self.recipe.effective_batch))
        compiled = lowered.compile()
        stats, largest = compiled.memory_analysis(), largest_temporaries(compiled)
        assert stats is not None
        memory.trim()
        return Analysis(
            argument_bytes=stats.argument_size_in_bytes,
            output_bytes=stats.output_size_in_bytes,
            alias_bytes=stats.alias_size_in_bytes,
            temp_bytes=stats.temp_size_in_bytes,
            peak_bytes=stats.peak_memory_in_bytes - stats.host_argument_size_in_bytes - stats.host_temp_size_in_bytes,
            host_temp_bytes=stats.host_temp_size_in_bytes,
            flops=self._flops(plan),
            moved_bytes=dots(jaxpr).moved_bytes,
            largest=tuple(largest),
        )

    def rehearse(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what starting and evaluating take. The host's process is weighed without its accelerator.

        Starting needs less than a step does: its temporaries are estimated, since compiling them for a TPU takes as
        long as the step. Evaluation is compiled for the chip.
        """
        full = plan_of(plan)
        options: dict[str, Any] = {"frozen_bits": full.frozen_bits, "precision": full.precision}
        init = make_init(self._task(full), self._rule(full.storage), **options, examples=self._examples)
        seed = jax.ShapeDtypeStruct((), jnp.uint32)
        return self._host() | {
            "init_temp_bytes": self._starting(full, liveness.temporary_bytes(jax.jit(init).trace(seed).jaxpr)),
            "evaluate_temp_bytes": self._evaluation(full),
        }

    def _starting(self, plan: Plan, traced: int) -> int:
        """Returns the temporaries of making the state.

        A state that is offloaded is made on the device: the compiler says how much of it is there at a time.
        """
        if plan.offload == "none":
            return traced
        if not self.compiled:
            return traced + self.static(plan.fsdp, plan.storage).host_bytes(plan.offload)
        stats = self._sharded(plan).init().compile().memory_analysis()
        assert stats is not None
        return stats.temp_size_in_bytes

    def _evaluation(self, plan: Plan) -> int:
        batch = self.recipe.batch_spec(plan.micro_batch)
        if not self.compiled:
            evaluate = jax.jit(make_evaluate(self._task(plan)))
            return liveness.temporary_bytes(
                evaluate.trace(evaluated(self.state(plan.storage, plan.precision)), self._share(batch)).jaxpr
            )
        stats = self._sharded(plan).evaluate(batch).compile().memory_analysis()
        assert stats is not None
        return stats.temp_size_in_bytes

    def _host(self) -> dict[str, int]:
        """Weighs a process that imports what training imports. A driver's own memory cannot be known here."""
        request = json.dumps(self._about)
        command = [sys.executable, "-m", "plimsoll.worker", "host", request]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"the host's process failed: {answer.stderr.strip()[-300:]}")
        return json.loads(answer.stdout.splitlines()[-1])

    def estimated(self, plan: Plan) -> Analysis:
        """Returns one device's share of the work, traced, less what `fsdp` splits of the gradient."""
        devices, state = self.chip.devices, self.state(plan.storage, plan.precision, examples=self._examples)
        if plan.offload != "none":  # in the types, so that it is streamed and not counted
            shardings = offload.placed(state, plan.offload, AbstractMesh((1,), ("device",)))
            state = sharding.with_shardings(state, shardings)
        task, rule = self._task(plan), self._rule(plan.storage)
        share = self._share(self.recipe.batch_spec(self.recipe.effective_batch))
        step = make_step(task, rule, accumulation=plan.accumulation, layerwise=plan.layerwise)
        jaxpr = jax.jit(step, donate_argnums=0).trace(state, share).jaxpr
        whole = program.tree_bytes(state["params"]["trainable"])
        split = whole - whole // plan.fsdp
        static = self.static(plan.fsdp, plan.storage)
        held = static.state_bytes - static.host_bytes(plan.offload)
        return Analysis(
            argument_bytes=held,
            output_bytes=held,
            alias_bytes=held,
            temp_bytes=max(0, liveness.temporary_bytes(jaxpr) - split),
            flops=self._flops(plan),
            moved_bytes=dots(jaxpr).moved_bytes * devices,
            host_temp_bytes=liveness.kept_on_host_bytes(jaxpr),
            source="estimated",
        )

    def _flops(self, plan: Plan) -> float:
        """Counts the whole step in its plain form: a chip's attention kernel shows no dots, and a CPU has no TF32."""
        task = self.recipe.task(dataclasses.replace(plan.compute("cpu"), precision="float32"))
        step = make_step(task, self._rule(plan.storage), accumulation=plan.accumulation, layerwise=plan.layerwise)
        batch = program.shapes(self.recipe.batch_spec(self.recipe.effective_batch))
        return dot_flops(jax.jit(step).trace(self.state(plan.storage, plan.precision), batch).jaxpr)

    @property
    def _examples(self) -> int:
        """One device's share of an effective batch."""
        return self.recipe.effective_batch // self.chip.devices

    def _task(self, plan: Plan) -> Any:
        return self.recipe.task(plan.compute(BACKEND[self.chip.platform]))

    def _sharded(self, plan: Plan) -> Sharded:
        return Sharded(self.devices, self._task(plan), self._rule(plan.storage), plan)

    def _share(self, batch: program.BatchSpec) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of one device's rows of a batch."""
        return {
            name: jax.ShapeDtypeStruct((spec.shape[0] // self.chip.devices, *spec.shape[1:]), spec.dtype)
            for name, spec in program.shapes(batch).items()
        }
